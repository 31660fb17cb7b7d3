#include "intraop/contest_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

// A file of this process that goes away with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("shardwright_reader_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Errors of one text: code and whole message.
std::pair<std::string, std::string> errorOf(const std::string& text, JsonLimits limits = {}) {
  const TemporaryFile file(text);
  try {
    readContestProblem(file.path(), limits);
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  return {"none", ""};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kHostileSeconds = 2.0;
#else
constexpr double kHostileSeconds = 0.1;
#endif

const std::string kNodes =
    R"("nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3, 1000000000000000000]],
       "usages": [[5, 6], [7, 8]]})";
const std::string kEdges =
    R"("edges": {"nodes": [[0, 1]], "costs": [[0, 4, 5, 100000000000000000]]})";

std::string problemOf(const std::string& parts) { return "{\"problem\": {" + parts + "}}"; }

TEST(ContestReader, ReadsEveryPart) {
  const TemporaryFile file(
      problemOf("\"name\": \"a \\\"b\\\"\", " + kEdges + ", " + kNodes + ", \"usage_limit\": 12"));
  const Problem problem = readContestProblem(file.path());
  EXPECT_EQ(problem.name(), "a \"b\"");
  ASSERT_EQ(problem.numNodes(), 2u);
  EXPECT_EQ(problem.nodes()[1].costs, (std::vector<int64_t>{3, kForbidden}));
  EXPECT_EQ(problem.nodes()[1].memory[0].interval, (LiveInterval{1, 3}));
  EXPECT_EQ(problem.nodes()[0].memory[0].bytes, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(problem.table(problem.edges()[0].table).at(1, 0), 5);
  EXPECT_EQ(problem.table(problem.edges()[0].table).at(1, 1), kForbidden);
  EXPECT_EQ(problem.memoryLimitBytes(), 12);
}

TEST(ContestReader, LimitNameAndEdgesMayBeMissing) {
  const TemporaryFile file(problemOf(kNodes));
  const Problem problem = readContestProblem(file.path());
  EXPECT_EQ(problem.memoryLimitBytes(), std::nullopt);
  EXPECT_TRUE(problem.edges().empty());
}

TEST(ContestReader, SaysWhereAFileIsWrong) {
  const auto [code, message] = errorOf(
      problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[1, 2.5]], "usages": [[1, 1]]})"));
  EXPECT_EQ(code, "E212");
  EXPECT_NE(message.find("/problem/nodes/costs/0"), std::string::npos) << message;
  EXPECT_NE(message.find("byte "), std::string::npos);
  EXPECT_NE(message.find("a fraction or an exponent"), std::string::npos);
}

TEST(ContestReader, HostileFilesAreCodedErrors) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "E212"},
      {" \n\t", "E212"},
      {"null", "E212"},
      {"[]", "E212"},
      {"{}", "E212"},
      {"{", "E212"},
      {"{\"problem\"", "E212"},
      {"{\"problem\":", "E212"},
      {"{\"problem\":{}} x", "E212"},
      {"{\"problem\":{},}", "E212"},
      {"{\"problem\":{},\"problem\":{}}", "E212"},
      {"{\"other\":{}}", "E212"},
      {problemOf("\"nodes\": 5"), "E212"},
      {problemOf("\"nodes\": {\"weights\": []}"), "E212"},
      {problemOf("\"name\": 5"), "E212"},
      {problemOf("\"name\": \"abc"), "E212"},
      {problemOf("\"name\": \"\\u0041\""), "E212"},
      {problemOf("\"name\": \"a\nb\""), "E212"},
      {problemOf("\"name\": \"" + std::string(5000, 'x') + "\""), "E213"},
      {problemOf("\"usage_limit\": -1, " + kNodes), "E211"},
      {problemOf("\"usage_limit\": 1e9, " + kNodes), "E212"},
      {problemOf("\"usage_limit\": \"1\", " + kNodes), "E212"},
      {problemOf("\"usage_limit\": null, " + kNodes), "E212"},
      {problemOf("\"usage_limit\": 01, " + kNodes), "E212"},
      {problemOf("\"usage_limit\": -, " + kNodes), "E212"},
      {problemOf("\"usage_limit\": 9223372036854775808, " + kNodes), "E212"},
      {problemOf("\"usage_limit\": 99999999999999999999999999, " + kNodes), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[1]], "usages": []})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [], "costs": [[1]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0]], "costs": [[1]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1, 2]], "costs": [[1]], "usages": [[1]]})"),
       "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[]], "usages": [[]]})"), "E211"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[1, 2]], "usages": [[1]]})"),
       "E211"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[1]], "usages": [[-1]]})"), "E211"},
      {problemOf(
           R"("nodes": {"intervals": [[0, 1]], "costs": [[-90000000000000000000]], "usages": [[1]]})"),
       "E212"},
      {problemOf(
           R"("nodes": {"intervals": [[0, 1]], "costs": [[-2000000000000000000]], "usages": [[1]]})"),
       "E211"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[1,]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[1 2]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[+1]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[NaN]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[true]], "usages": [[1]]})"),
       "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": [[[1]]], "usages": [[1]]})"), "E212"},
      {problemOf(R"("nodes": {"intervals": [[0, 1]], "costs": {"0": [1]}, "usages": [[1]]})"),
       "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0, 2]], "costs": [[1, 1, 1, 1]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[-1, 0]], "costs": [[1, 1, 1, 1]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0, 1, 1]], "costs": [[1, 1, 1, 1]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0]], "costs": [[1, 1]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0, 1]], "costs": [[1, 1, 1]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0, 1]], "costs": [[1, 1, 1, 1, 1]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0, 1]], "costs": [[]]})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[0, 1]], "costs": []})"), "E212"},
      {problemOf(kNodes + R"(, "edges": {"nodes": [[4294967296, 1]], "costs": [[1, 1, 1, 1]]})"),
       "E212"},
      {problemOf(kNodes + ", " + kNodes), "E212"},
      {std::string("\xef\xbb\xbf") + problemOf(kNodes), "E212"},
      {std::string("\x1f\x8b garbage that is not gzip"), "E212"},
      {std::string("\x1f\x8b"), "E212"},
      {std::string("\0\0\0\0", 4), "E212"},
      {problemOf(kNodes).substr(0, 60), "E212"},
      {problemOf(kNodes) + std::string(1, '\0'), "E212"},
      {std::string(100000, '['), "E212"},
      {problemOf("\"name\": \"x\", \"nodes\": " + std::string(50, '{')), "E212"},
  };
  EXPECT_GE(cases.size(), 60u);
  for (const auto& [text, wanted] : cases) {
    const auto start = std::chrono::steady_clock::now();
    const auto [code, message] = errorOf(text);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(code, wanted) << text.substr(0, 200) << "\n" << message;
    EXPECT_LT(elapsed.count(), kHostileSeconds);
  }
}

TEST(ContestReader, SizeAndDepthAreLimited) {
  JsonLimits limits;
  limits.max_bytes = 100'000;
  EXPECT_EQ(errorOf(problemOf(kNodes) + std::string(300'000, ' '), limits).first, "E213");
  limits.max_depth = 2;
  EXPECT_EQ(errorOf(problemOf(kNodes), limits).first, "E213");
}

TEST(ContestReader, LongListsEndWhereTheyMust) {
  std::string ones = "1";
  for (int i = 0; i < 1 << 18; ++i) ones += ",1";
  for (const std::string& text :
       {problemOf("\"nodes\": {\"costs\": [[" + ones + "]]}"),
        problemOf("\"nodes\": {\"usages\": [[" + ones + "]]}"),
        problemOf("\"nodes\": {\"intervals\": [[" + ones + "]]}"),
        problemOf(kNodes + ", \"edges\": {\"nodes\": [[" + ones + "]]}"),
        problemOf(kNodes + ", \"edges\": {\"nodes\": [[0, 1]], \"costs\": [[" + ones + "]]}")}) {
    const auto [code, message] = errorOf(text);
    EXPECT_EQ(code, "E212");
    EXPECT_NE(message.find("a list of a problem file is too long"), std::string::npos) << message;
  }
}

TEST(ContestReader, NamesAreUtf8) {
  const auto codeOf = [](const std::string& name) {
    return errorOf(problemOf("\"name\": \"" + name + "\", " + kNodes)).first;
  };
  for (const char* good :
       {"plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(codeOf(good), "none") << good;
  }
  for (const char* bad : {"\x80", "\xff", "\xc0\xaf", "\xc3", "\xe2\x82", "\xe0\x80\xaf",
                          "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xc3z"}) {
    EXPECT_EQ(codeOf(bad), "E212");
  }
}

TEST(ContestReader, MissingFileAndFolderAreCodedErrors) {
  for (const std::string& path :
       {std::string("/nonexistent/none.json"), std::filesystem::temp_directory_path().string()}) {
    try {
      readContestProblem(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E212");
    }
  }
}

TEST(ContestReader, ReadsTheContestsInstances) {
  const std::string folder = std::string(SHARDWRIGHT_TEST_DATA) + "/iopddl/asplos-2025-iopddl-";
  const Problem b = readContestProblem(folder + "B.json.gz");
  EXPECT_EQ(b.numNodes(), 816u);
  EXPECT_EQ(b.edges().size(), 1096u);
  EXPECT_EQ(b.memoryLimitBytes(), 14392528);
  EXPECT_EQ(solve(b).cost, 532843);
  const Answer g = solve(readContestProblem(folder + "G.json.gz"));
  EXPECT_EQ(g.cost, 217039);
  EXPECT_EQ(g.status, SolveStatus::kOptimal);
}

TEST(ContestReader, SolvesCapturedTrainingSteps) {
  const std::string folder = std::string(SHARDWRIGHT_TEST_DATA) + "/whole_step/";
  const Answer unlimited = solve(readContestProblem(folder + "gpt24b8_8_inf.json.gz"));
  EXPECT_EQ(unlimited.status, SolveStatus::kOptimal);
  EXPECT_EQ(unlimited.cost, 236362984);
  SolveOptions options;
  options.relative_gap = 1e-3;
  options.time_limit_s = 30.0;
  const Answer limited = solve(readContestProblem(folder + "gpt24_8_s10.json.gz"), options);
  EXPECT_EQ(limited.status, SolveStatus::kFeasible);
  EXPECT_EQ(limited.stop, StopCause::kGapReached);
  EXPECT_LE(limited.gap, 1e-3);
  EXPECT_GE(limited.cost, 731490297);
  EXPECT_LE(*limited.lower_bound, 731490297);
}

}  // namespace
}  // namespace shardwright
