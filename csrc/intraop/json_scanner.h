// Strict streaming JSON scanner for integer-only documents. Reads plain or gzip files in small
// chunks, keeps the JSON pointer of where it is, and raises Error E212 / E213 at the first offence,
// so that a hostile file costs neither time nor memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace shardwright {

struct JsonLimits {
  size_t max_bytes = size_t{4} << 30;  // of text, after decompression
  int max_depth = 16;
  size_t max_string = 4096;
  size_t max_blanks = size_t{1} << 20;  // in a row
  // A compressed file may unpack to this many times its size (contest files: 20 to 65 times) ...
  size_t max_expansion = 250;
  // ... or to this many bytes, whichever is more.
  size_t free_bytes = size_t{4} << 20;
};

class JsonScanner {
 public:
  JsonScanner(const std::string& path, const JsonLimits& limits);
  ~JsonScanner();
  JsonScanner(const JsonScanner&) = delete;
  JsonScanner& operator=(const JsonScanner&) = delete;

  // Calls on_member(key) with the scanner before each member's value, which on_member must consume.
  // A key that appears twice is an error.
  void readObject(const std::function<void(const std::string&)>& on_member);
  // Calls on_element before each element, which on_element must consume.
  void readArray(const std::function<void()>& on_element);
  // Appends the integers of one flat array of at most max_count.
  void readIntegers(std::vector<int64_t>& values, size_t max_count);
  int64_t readInteger();
  // Text in valid UTF-8.
  std::string readString();
  // Nothing but white space may follow.
  void expectEnd();

  // Raises Error E212 at the present place.
  [[noreturn]] void fail(const std::string& summary, const std::string& values,
                         const std::string& advice) const;

 private:
  class Source;

  int peek();
  int peekToken();  // skips white space first
  int next();
  void expect(char wanted);
  std::string describe(int symbol) const;
  std::string where() const;
  void enter();

  std::unique_ptr<Source> source_;
  std::string path_;
  JsonLimits limits_;
  std::vector<std::string> pointer_;
  int depth_ = 0;
};

}  // namespace shardwright
