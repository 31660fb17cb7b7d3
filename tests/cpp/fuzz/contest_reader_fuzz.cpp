// Fuzzes the contest reader, plain and gzip. Whatever the bytes: a Problem or an Error with one of
// the reader's codes, nothing else; a small Problem is also solved and held against every choice.
//
//   shardwright_fuzz_reader SECONDS [SEED] [CORPUS]...   files in CORPUS folders are the start
//   shardwright_fuzz_reader FILE                         runs one input
//
// An input that fails is in crash-input (written before each execution).

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "fuzz/coverage.h"
#include "fuzz/mutator.h"
#include "intraop/contest_reader.h"
#include "intraop/solve.h"

namespace shardwright::fuzz {
namespace {

std::map<std::string, size_t> outcomes;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FINDING: %s\n", what.c_str());
  std::abort();
}

std::string readFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file in memory that is written anew for every execution.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {}
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }
  void write(const uint8_t* data, size_t size) {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) {
      fail("the memory file cannot be written");
    }
  }

 private:
  int fd_;
  std::string path_;
};

// Cheapest valid choice by trying all; false when there are too many.
bool tryEveryChoice(const Problem& problem, bool& feasible, int64_t& cost) {
  size_t num_choices = 1;
  for (const ChoiceNode& node : problem.nodes()) {
    num_choices *= node.costs.size();
    if (num_choices > 2000) return false;
  }
  feasible = false;
  std::vector<int32_t> choice(problem.numNodes(), 0);
  for (size_t k = 0; k < num_choices; ++k) {
    size_t rest = k;
    for (size_t n = 0; n < choice.size(); ++n) {
      const size_t size = problem.nodes()[n].costs.size();
      choice[n] = static_cast<int32_t>(rest % size);
      rest /= size;
    }
    const Evaluation found = evaluateChoice(problem, choice);
    if (found.valid() && (!feasible || found.cost < cost)) {
      feasible = true;
      cost = found.cost;
    }
  }
  return true;
}

void checkSolve(const Problem& problem) {
  bool feasible = false;
  int64_t cost = 0;
  if (problem.numNodes() > 12 || !tryEveryChoice(problem, feasible, cost)) return;
  SolveOptions options;
  options.time_limit_s = 5.0;
  options.smallest_peak_time_s = 0.1;
  options.use_integer_program = false;
  const Answer answer = solve(problem, options);
  if (feasible != (answer.status != SolveStatus::kInfeasible)) fail("feasible or not?");
  if (feasible && answer.lower_bound && *answer.lower_bound > cost) fail("bound above the optimum");
  if (feasible && answer.status == SolveStatus::kOptimal && answer.cost != cost) {
    fail("not the optimum");
  }
  ++outcomes[feasible ? "solved" : "infeasible"];
}

// Whether the reader gave a problem.
bool runInput(const uint8_t* data, size_t size) {
  static MemoryFile file;
  file.write(data, size);
  try {
    const Problem problem = readContestProblem(file.path());
    ++outcomes["accepted"];
    checkSolve(problem);
    return true;
  } catch (const Error& error) {
    const std::string& code = error.code();
    if (code != "E211" && code != "E212" && code != "E213") fail("error " + code);
    if (error.message().size() > 20'000) fail("a message without end");
    ++outcomes[code];
    return false;
  }
}

std::string compress(const std::string& text, int level) {
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) return text;
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::vector<std::string> startingCorpus() {
  const std::string nodes =
      R"("nodes":{"intervals":[[0,2],[1,3]],"costs":[[1,2],[3,4]],"usages":[[5,6],[7,8]]})";
  const std::string edges = R"("edges":{"nodes":[[0,1],[1,0]],"costs":[[0,4,5,6],[1,1,0,9]]})";
  return {
      "{}",
      R"({"problem":{}})",
      R"({"problem":{"name":"a \"b\" \\ \/ \n \t é",)" + nodes + "}}",
      "{\"problem\": {" + nodes + ", " + edges + ", \"usage_limit\": 12}}",
      "{\"problem\":{" + edges + "," + nodes + ",\"usage_limit\":0}}\n",
      R"({"problem":{"nodes":{"intervals":[[0,0],[5,1],[-3,9]],"costs":[[1],[0,1000000000000000000,-7],[2,2]],)"
      R"("usages":[[0],[1,2,3],[4,4]]},"edges":{"nodes":[[2,1],[0,0],[1,2]],"costs":[[1,2,3,4,5,6],[9],)"
      R"([100000000000000000,0,0,0,0,1]]},"usage_limit":8}})",
  };
}

int fuzz(double seconds, uint64_t seed, std::vector<std::string> corpus) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kMaxBytes = 4096;
  Mutator mutator(seed);
  const auto start = Clock::now();
  auto last_report = start;
  size_t num_executions = 0;
  std::vector<std::string> accepted;
  const auto run = [&](const std::string& text) {
    const int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text.data(), text.size()) < 0) fail("crash-input cannot be written");
    close(fd);
    beginExecution();
    const bool is_problem = runInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    ++num_executions;
    const bool is_new = endExecution() > 0;
    if (is_new && is_problem) accepted.push_back(text);
    return is_new;
  };
  for (const std::string& text : std::vector<std::string>(corpus)) run(text);
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (elapsed() < seconds) {
    // Problems half of the time: what is already broken seldom reaches far.
    const auto& bases = mutator.below(2) == 0 ? accepted : corpus;
    const std::string base = bases[mutator.below(bases.size())];
    const std::string other = corpus[mutator.below(corpus.size())];
    std::string text = mutator.mutate(base, other, kMaxBytes);
    if (mutator.below(16) == 0) {
      // Compressed, and then sometimes damaged.
      text = compress(text, static_cast<int>(mutator.below(10)));
      if (mutator.below(2) == 0 && !text.empty()) {
        text[mutator.below(text.size())] = static_cast<char>(mutator.below(256));
      }
      if (mutator.below(4) == 0) text.resize(mutator.below(text.size() + 1));
    }
    if (run(text)) corpus.push_back(text);
    if (Clock::now() - last_report > std::chrono::seconds(60)) {
      last_report = Clock::now();
      std::printf("%.0f s: %zu executions, %zu inputs kept, %zu edges\n", elapsed(), num_executions,
                  corpus.size(), numCovered());
      std::fflush(stdout);
    }
  }
  std::printf("%.0f s, seed %llu: %zu executions, %zu inputs kept, %zu edges, no finding\n",
              elapsed(), static_cast<unsigned long long>(seed), num_executions, corpus.size(),
              numCovered());
  for (const auto& [outcome, count] : outcomes) {
    std::printf("  %s: %zu\n", outcome.c_str(), count);
  }
  std::filesystem::remove("crash-input");
  return 0;
}

}  // namespace
}  // namespace shardwright::fuzz

int main(int argc, char** argv) {
  using namespace shardwright::fuzz;
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s SECONDS [SEED] [CORPUS]... | FILE\n", argv[0]);
    return 2;
  }
  if (std::filesystem::is_regular_file(argv[1])) {
    const std::string text = readFile(argv[1]);
    runInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    for (const auto& [outcome, count] : outcomes) std::printf("%s\n", outcome.c_str());
    return 0;
  }
  std::vector<std::string> corpus = startingCorpus();
  for (int i = 3; i < argc; ++i) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) corpus.push_back(readFile(file));
  }
  return fuzz(std::atof(argv[1]), argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1,
              std::move(corpus));
}
