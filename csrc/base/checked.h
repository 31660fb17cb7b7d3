// Integer arithmetic that throws instead of wrapping round. Costs are int64 and are summed in 128
// bits.

#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"

namespace shardwright {

__extension__ using Int128 = __int128;

// int64_t or Int128 (standard concepts leave __int128 out when extensions are off).
template <typename T>
concept CheckedInteger = std::same_as<T, std::int64_t> || std::same_as<T, Int128>;

// Decimal text of a 128-bit integer: toString(-(Int128{1} << 64)) is "-18446744073709551616".
inline std::string toString(Int128 value) {
  const bool negative = value < 0;
  std::string reversed;
  do {
    const int digit =
        static_cast<int>(value % 10);  // keeps the sign, so the smallest value needs no negation
    reversed.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    value /= 10;
  } while (value != 0);
  if (negative) {
    reversed.push_back('-');
  }
  return {reversed.rbegin(), reversed.rend()};
}

namespace checked_detail {

template <CheckedInteger T>
[[noreturn]] void throwOverflow(T a, const char* op, T b) {
  throw Error(
      ErrorKind::kInternal, "E901",
      "an integer result does not fit " + std::to_string(sizeof(T) * 8) + " bits.",
      {.values = {toString(a) + " " + op + " " + toString(b)},
       .advice = "check the tensor sizes and costs of the model; if they are real, report this"});
}

}  // namespace checked_detail

// a + b. Throws Error E901 on overflow.
template <CheckedInteger T>
T checkedAdd(T a, T b) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) {
    checked_detail::throwOverflow(a, "+", b);
  }
  return result;
}

// a * b. Throws Error E901 on overflow.
template <CheckedInteger T>
T checkedMul(T a, T b) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) {
    checked_detail::throwOverflow(a, "*", b);
  }
  return result;
}

// The value as int64. Throws Error E901 when it does not fit.
inline std::int64_t checkedNarrow(Int128 value) {
  if (value < std::numeric_limits<std::int64_t>::min() ||
      value > std::numeric_limits<std::int64_t>::max()) {
    throw Error(
        ErrorKind::kInternal, "E901", "an integer result does not fit 64 bits.",
        {.values = {toString(value)},
         .advice = "check the tensor sizes and costs of the model; if they are real, report this"});
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace shardwright
