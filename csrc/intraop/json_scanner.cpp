#include "intraop/json_scanner.h"

#include <sys/stat.h>
#ifdef SHARDWRIGHT_HAVE_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"

namespace shardwright {
namespace {

constexpr int kEnd = -1;
constexpr size_t kChunkBytes = 1 << 16;

[[noreturn]] void throwFileError(const std::string& path, const std::string& summary,
                                 const std::string& values, const std::string& advice) {
  throw Error(ErrorKind::kProblem, "E212", summary + ".",
              {.values = {values}, .where = path, .advice = advice});
}

[[noreturn]] void throwTooLarge(const std::string& path, const std::string& values) {
  throw Error(ErrorKind::kProblem, "E213", "a problem file is too large.",
              {.values = {values},
               .where = path,
               .advice = "split the problem, or check that the file is what you mean"});
}

// Bytes that follow the first one of a UTF-8 sequence, or -1 for a byte that starts none.
int continuationBytes(unsigned char first) {
  if (first < 0x80) return 0;
  if (first >= 0xc2 && first <= 0xdf) return 1;
  if (first >= 0xe0 && first <= 0xef) return 2;
  if (first >= 0xf0 && first <= 0xf4) return 3;
  return -1;
}

// Source: the Unicode standard, table 3-7 (no overlong forms, no surrogates, nothing past 10FFFF).
bool isUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int rest = continuationBytes(first);
    if (rest < 0 || i + static_cast<size_t>(rest) >= text.size()) return false;
    for (int k = 1; k <= rest; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      unsigned char low = 0x80;
      unsigned char high = 0xbf;
      if (k == 1 && first == 0xe0) low = 0xa0;
      if (k == 1 && first == 0xed) high = 0x9f;
      if (k == 1 && first == 0xf0) low = 0x90;
      if (k == 1 && first == 0xf4) high = 0x8f;
      if (next < low || next > high) return false;
    }
    i += static_cast<size_t>(rest) + 1;
  }
  return true;
}

}  // namespace

// Bytes of a file, decompressed when it is gzip.
class JsonScanner::Source {
 public:
  Source(const std::string& path, const JsonLimits& limits) : path_(path), limits_(limits) {
    // Opening a pipe would wait for a writer, and a device may never end.
    struct stat status {};
    if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      throwFileError(path, "a problem file cannot be read", "not a regular file",
                     "give a .json or .json.gz file");
    }
    file_ = std::fopen(path.c_str(), "rb");
    if (!file_) {
      throwFileError(path, "a problem file cannot be opened", std::strerror(errno),
                     "check the path and its permissions");
    }
    const size_t got = std::fread(chunk_.data(), 1, 2, file_);
    const bool is_gzip = got == 2 && static_cast<unsigned char>(chunk_[0]) == 0x1f &&
                         static_cast<unsigned char>(chunk_[1]) == 0x8b;
    std::rewind(file_);
    if (!is_gzip) return;
    std::fclose(file_);
    file_ = nullptr;
#ifdef SHARDWRIGHT_HAVE_ZLIB
    gzip_ = gzopen(path.c_str(), "rb");
    if (!gzip_) {
      throwFileError(path, "a compressed problem file cannot be opened", std::strerror(errno),
                     "check the path and its permissions");
    }
#else
    throwFileError(path, "compressed problem files are not supported by this build",
                   "the file starts with the gzip mark", "decompress it first, or build with zlib");
#endif
  }
  ~Source() {
    if (file_) std::fclose(file_);
#ifdef SHARDWRIGHT_HAVE_ZLIB
    if (gzip_) gzclose(gzip_);
#endif
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  int peek() {
    if (position_ == length_) refill();
    return position_ == length_ ? kEnd : static_cast<unsigned char>(chunk_[position_]);
  }
  void advance() { ++position_; }
  size_t offset() const { return consumed_ + position_; }

 private:
  void refill() {
    consumed_ += length_;
    position_ = 0;
    length_ = 0;
    if (consumed_ > limits_.max_bytes) {
      throwTooLarge(path_, "more than " + std::to_string(limits_.max_bytes) + " bytes of text");
    }
    if (file_) {
      length_ = std::fread(chunk_.data(), 1, chunk_.size(), file_);
      if (length_ == 0 && std::ferror(file_)) {
        throwFileError(path_, "a problem file cannot be read", std::strerror(errno),
                       "check that it is a regular file");
      }
      return;
    }
#ifdef SHARDWRIGHT_HAVE_ZLIB
    const int got = gzread(gzip_, chunk_.data(), static_cast<unsigned>(chunk_.size()));
    int code = Z_OK;
    const char* message = gzerror(gzip_, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      throwFileError(path_, "a compressed problem file is damaged", message,
                     "copy or make the file again");
    }
    length_ = static_cast<size_t>(got);
    const z_off_t taken = gzoffset(gzip_);  // compressed bytes read so far
    const size_t text = consumed_ + length_;
    if (text > limits_.free_bytes &&
        text / limits_.max_expansion > static_cast<size_t>(std::max<z_off_t>(taken, 1))) {
      throwTooLarge(path_, "it unpacks to more than " + std::to_string(limits_.max_expansion) +
                               " times its size");
    }
#endif
  }

  std::string path_;
  JsonLimits limits_;
  std::FILE* file_ = nullptr;
#ifdef SHARDWRIGHT_HAVE_ZLIB
  gzFile gzip_ = nullptr;
#endif
  std::array<char, kChunkBytes> chunk_{};
  size_t position_ = 0;
  size_t length_ = 0;
  size_t consumed_ = 0;
};

JsonScanner::JsonScanner(const std::string& path, const JsonLimits& limits)
    : source_(std::make_unique<Source>(path, limits)), path_(path), limits_(limits) {}

JsonScanner::~JsonScanner() = default;

int JsonScanner::peek() { return source_->peek(); }

int JsonScanner::peekToken() {
  int symbol = source_->peek();
  for (size_t num_blanks = 0; symbol == ' ' || symbol == '\n' || symbol == '\t' || symbol == '\r';
       ++num_blanks) {
    if (num_blanks == limits_.max_blanks) {
      throwTooLarge(where(), "more than " + std::to_string(num_blanks) + " blanks in a row");
    }
    source_->advance();
    symbol = source_->peek();
  }
  return symbol;
}

int JsonScanner::next() {
  const int symbol = source_->peek();
  if (symbol != kEnd) source_->advance();
  return symbol;
}

std::string JsonScanner::describe(int symbol) const {
  if (symbol == kEnd) return "the end of the file";
  if (symbol >= 0x20 && symbol < 0x7f) return std::string("'") + static_cast<char>(symbol) + "'";
  return "byte " + std::to_string(symbol);
}

std::string JsonScanner::where() const {
  std::string text = path_ + ", byte " + std::to_string(source_->offset()) + ", at ";
  if (pointer_.empty()) return text + "/";
  for (const std::string& part : pointer_) text += "/" + part;
  return text;
}

void JsonScanner::fail(const std::string& summary, const std::string& values,
                       const std::string& advice) const {
  throwFileError(where(), summary, values, advice);
}

void JsonScanner::expect(char wanted) {
  const int symbol = peekToken();
  if (symbol != wanted) {
    fail("a problem file is not valid JSON",
         std::string("expected '") + wanted + "', found " + describe(symbol),
         "check the file against the contest format");
  }
  source_->advance();
}

void JsonScanner::enter() {
  if (++depth_ > limits_.max_depth) {
    throw Error(ErrorKind::kProblem, "E213", "a problem file is nested too deeply.",
                {.values = {"more than " + std::to_string(limits_.max_depth) + " levels"},
                 .where = where(),
                 .advice = "check the file against the contest format"});
  }
}

void JsonScanner::readObject(const std::function<void(const std::string&)>& on_member) {
  expect('{');
  enter();
  std::set<std::string> seen;
  if (peekToken() == '}') {
    source_->advance();
    --depth_;
    return;
  }
  while (true) {
    std::string key = readString();
    expect(':');
    pointer_.push_back(key);
    if (!seen.insert(key).second) {
      fail("a key appears twice in a problem file", "\"" + key + "\"", "keep one of them");
    }
    on_member(key);
    pointer_.pop_back();
    const int symbol = peekToken();
    if (symbol == '}') break;
    expect(',');
  }
  source_->advance();
  --depth_;
}

void JsonScanner::readArray(const std::function<void()>& on_element) {
  expect('[');
  enter();
  if (peekToken() == ']') {
    source_->advance();
    --depth_;
    return;
  }
  for (size_t i = 0;; ++i) {
    pointer_.push_back(std::to_string(i));
    on_element();
    pointer_.pop_back();
    const int symbol = peekToken();
    if (symbol == ']') break;
    expect(',');
  }
  source_->advance();
  --depth_;
}

void JsonScanner::readIntegers(std::vector<int64_t>& values, size_t max_count) {
  expect('[');
  if (peekToken() == ']') {
    source_->advance();
    return;
  }
  for (size_t count = 0;; ++count) {
    if (count == max_count) {
      fail("a list of a problem file is too long",
           "more than " + std::to_string(count) + " numbers",
           "check the file against the contest format");
    }
    values.push_back(readInteger());
    const int symbol = peekToken();
    if (symbol == ']') break;
    expect(',');
  }
  source_->advance();
}

int64_t JsonScanner::readInteger() {
  int symbol = peekToken();
  const bool negative = symbol == '-';
  if (negative) {
    source_->advance();
    symbol = peek();
  }
  if (symbol < '0' || symbol > '9') {
    fail("a problem file has something else where an integer belongs", "found " + describe(symbol),
         "costs, sizes and indices are integers");
  }
  const bool leading_zero = symbol == '0';
  uint64_t magnitude = 0;
  size_t num_digits = 0;
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  while (symbol >= '0' && symbol <= '9') {
    const auto digit = static_cast<uint64_t>(symbol - '0');
    if (magnitude > (kMax - digit) / 10) {
      fail("an integer in a problem file does not fit 64 bits", "more than 9223372036854775807",
           "use a coarser unit");
    }
    magnitude = magnitude * 10 + digit;
    ++num_digits;
    source_->advance();
    symbol = peek();
  }
  if ((leading_zero && num_digits > 1) || symbol == '.' || symbol == 'e' || symbol == 'E') {
    fail("a problem file has something else where an integer belongs",
         leading_zero && num_digits > 1 ? "a leading zero" : "a fraction or an exponent",
         "write plain integers");
  }
  const auto value = static_cast<int64_t>(magnitude);
  return negative ? -value : value;
}

std::string JsonScanner::readString() {
  expect('"');
  std::string text;
  while (true) {
    const int symbol = next();
    if (symbol == '"') {
      if (!isUtf8(text)) {
        fail("a string in a problem file is not UTF-8", std::to_string(text.size()) + " bytes",
             "save the file as UTF-8");
      }
      return text;
    }
    if (symbol == kEnd || symbol < 0x20) {
      fail("a string in a problem file is not closed", "found " + describe(symbol),
           "check the file against the contest format");
    }
    if (symbol == '\\') {
      const int escaped = next();
      switch (escaped) {
        case '"':
        case '\\':
        case '/':
          text += static_cast<char>(escaped);
          break;
        case 'n':
          text += '\n';
          break;
        case 't':
          text += '\t';
          break;
        default:
          fail("a string in a problem file has an escape that is not read",
               "backslash followed by " + describe(escaped), "use plain text for names");
      }
    } else {
      text += static_cast<char>(symbol);
    }
    if (text.size() > limits_.max_string) {
      throw Error(ErrorKind::kProblem, "E213", "a string in a problem file is too long.",
                  {.values = {"more than " + std::to_string(limits_.max_string) + " bytes"},
                   .where = where(),
                   .advice = "shorten the name"});
    }
  }
}

void JsonScanner::expectEnd() {
  const int symbol = peekToken();
  if (symbol != kEnd) {
    fail("a problem file goes on after its end", "found " + describe(symbol),
         "keep one JSON object per file");
  }
}

}  // namespace shardwright
