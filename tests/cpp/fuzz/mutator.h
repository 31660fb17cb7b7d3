// Random changes of problem texts: of bytes, of JSON tokens, of whole parts, and mixtures of two.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::fuzz {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // One to eight changes; the result has at most max_bytes bytes.
  std::string mutate(const std::string& text, const std::string& other, size_t max_bytes);
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }

 private:
  void changeOnce(std::string& text, const std::string& other);
  void changeByte(std::string& text);
  void changeNumber(std::string& text);
  void changePart(std::string& text, const std::string& other);
  std::string number();

  std::mt19937_64 random_;
};

}  // namespace shardwright::fuzz
