#include "base/bytes_text.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace shardwright {
namespace {

struct Scaled {
  double value = 0;
  const char* unit = "KiB";
};

Scaled scaled(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return {value, kUnits[unit]};
}

std::string oneDecimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

}  // namespace

std::string bytesText(std::int64_t bytes) {
  const Scaled amount = scaled(bytes);
  return bytes < 1024 ? std::to_string(bytes) + " B" : oneDecimal(amount.value) + " " + amount.unit;
}

std::string bytesLimitText(std::int64_t bytes) {
  const Scaled amount = scaled(bytes);
  return oneDecimal(std::ceil(amount.value * 10) / 10) + amount.unit;
}

}  // namespace shardwright
