#include "fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <utility>

namespace shardwright::fuzz {
namespace {

constexpr std::array<std::string_view, 44> kTokens = {"{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      ",",
                                                      ":",
                                                      "\"",
                                                      "\\",
                                                      "\\\"",
                                                      "\\u0000",
                                                      "\n",
                                                      " ",
                                                      "\t",
                                                      "-",
                                                      "+",
                                                      ".",
                                                      "e9",
                                                      "null",
                                                      "true",
                                                      "false",
                                                      "NaN",
                                                      "Infinity",
                                                      "\"problem\"",
                                                      "\"name\"",
                                                      "\"nodes\"",
                                                      "\"edges\"",
                                                      "\"intervals\"",
                                                      "\"costs\"",
                                                      "\"usages\"",
                                                      "\"usage_limit\"",
                                                      "\xef\xbb\xbf",
                                                      "\xc3\xa9",
                                                      "\xed\xa0\x80",
                                                      "\xff",
                                                      std::string_view("\0", 1),
                                                      "[[",
                                                      "]]",
                                                      "[]",
                                                      "{}",
                                                      ",,",
                                                      "[0,0]",
                                                      "\x1f\x8b",
                                                      "//",
                                                      "/*"};

constexpr std::array<std::string_view, 24> kNumbers = {"0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "00",
                                                       "-0",
                                                       "65535",
                                                       "65536",
                                                       "65537",
                                                       "2147483647",
                                                       "2147483648",
                                                       "-2147483648",
                                                       "4294967295",
                                                       "4294967296",
                                                       "9007199254740993",
                                                       "99999999999999999",
                                                       "100000000000000000",
                                                       "1000000000000000000",
                                                       "1152921504606846976",
                                                       "1152921504606846977",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "-9223372036854775808",
                                                       "18446744073709551616"};

bool isDigit(char c) { return c >= '0' && c <= '9'; }

// The bracketed part around a place, or the place alone.
std::pair<size_t, size_t> partAround(const std::string& text, size_t place) {
  int depth = 0;
  size_t begin = place;
  while (begin > 0) {
    const char c = text[begin];
    if (c == ']' || c == '}') ++depth;
    if ((c == '[' || c == '{') && depth-- == 0) break;
    --begin;
  }
  depth = 0;
  size_t end = begin;
  while (end < text.size()) {
    const char c = text[end++];
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && --depth == 0) break;
  }
  return {begin, end};
}

}  // namespace

std::string Mutator::number() {
  if (below(2) == 0) return std::string(kNumbers[below(kNumbers.size())]);
  return (below(4) == 0 ? "-" : "") + std::to_string(random_() >> below(64));
}

void Mutator::changeByte(std::string& text) {
  const size_t place = below(text.size());
  switch (below(4)) {
    case 0:
      text[place] = static_cast<char>(random_());
      break;
    case 1:
      text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
      break;
    case 2:
      text.erase(place, 1 + below(8));
      break;
    default:
      text.insert(place, 1, static_cast<char>(random_()));
  }
}

void Mutator::changeNumber(std::string& text) {
  size_t begin = below(text.size());
  while (begin < text.size() && !isDigit(text[begin])) ++begin;
  size_t end = begin;
  while (end < text.size() && isDigit(text[end])) ++end;
  while (begin > 0 && isDigit(text[begin - 1])) --begin;
  text.replace(begin, end - begin, number());
}

void Mutator::changePart(std::string& text, const std::string& other) {
  const auto [begin, end] = partAround(text, below(text.size()));
  const std::string part = text.substr(begin, end - begin);
  switch (below(5)) {
    case 0:
      text.erase(begin, end - begin);
      break;
    case 1:
      text.insert(begin, part + ",");
      break;
    case 2:
      text.insert(below(text.size() + 1), part);
      break;
    case 3:
      if (!other.empty()) {
        const auto [from, to] = partAround(other, below(other.size()));
        text.replace(begin, end - begin, other.substr(from, to - from));
      }
      break;
    default: {
      const auto [from, to] = partAround(text, below(text.size()));
      text.replace(from, to - from, part);
    }
  }
}

void Mutator::changeOnce(std::string& text, const std::string& other) {
  if (text.empty()) {
    text = other;
    return;
  }
  switch (below(8)) {
    case 0:
    case 1:
      changeByte(text);
      break;
    case 2:
    case 3:
      changeNumber(text);
      break;
    case 4:
      text.insert(below(text.size() + 1), kTokens[below(kTokens.size())]);
      break;
    case 5:
      text.resize(below(text.size() + 1));
      break;
    default:
      changePart(text, other);
  }
}

std::string Mutator::mutate(const std::string& text, const std::string& other, size_t max_bytes) {
  std::string result = text;
  if (below(10) == 0 && !other.empty()) {
    // The head of one and the tail of another.
    result = text.substr(0, below(text.size() + 1)) + other.substr(below(other.size()));
  }
  const size_t num_changes = 1 + below(below(3) == 0 ? 8 : 2);
  for (size_t i = 0; i < num_changes; ++i) changeOnce(result, other);
  if (result.size() > max_bytes) result.resize(max_bytes);
  return result;
}

}  // namespace shardwright::fuzz
