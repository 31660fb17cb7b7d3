#include "intraop/integer_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>

#include "intraop/cbc_program.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool overloads(const std::vector<int64_t>& overload) {
  return std::any_of(overload.begin(), overload.end(), [](int64_t bytes) { return bytes > 0; });
}

// What the worker sends back, followed by one int32 per variable when has_labels is set.
struct WorkerReply {
  uint8_t finished = 0;
  uint8_t has_bound = 0;
  uint8_t has_labels = 0;
  double bound = 0.0;
};

// Runs rounds of CBC, adding the memory rows its answers violate, until one answer fits.
void runRounds(const ReducedProblem& problem, const IntegerProgramOptions& options,
               WorkerReply& reply, std::vector<int32_t>& best) {
  const auto start = Clock::now();
  const bool has_incumbent = !options.incumbent.empty();
  const double incumbent_cost = has_incumbent ? problem.costOf(options.incumbent) : kInfinity;
  // Differences up to the known gap matter; they are mapped to about 1e4.
  const double spread = has_incumbent ? std::max(1.0, incumbent_cost - options.lower_bound)
                                      : std::max(1.0, std::abs(options.lower_bound) * 0.01);
  const double scale = std::min(1.0, 1e4 / spread);
  // CBC drops choices that are better by less than its cutoff increment of 1e-5 scaled units.
  const double dropped = 1.5e-5 / scale;
  CbcProgram program(problem, scale);
  // Floating point errs in proportion to the objective.
  const auto rounding = [&](double cost) { return 1e-9 * std::abs(cost - program.constant()); };
  // The least cost that a choice of at least `bound` can have.
  const auto raised = [&](double bound) {
    const double units = std::ceil((bound - program.constant()) / program.unit());
    return program.constant() + units * program.unit();
  };
  std::set<int32_t> rows(options.rows.begin(), options.rows.end());
  for (int32_t row : rows) program.addMemoryRow(row);
  double best_cost = incumbent_cost;
  for (int round = 0; round < 200; ++round) {
    const double left = options.time_limit_s - secondsSince(start);
    if (left < 0.05) return;
    const CbcOutcome outcome = program.solve(left, options.incumbent);
    if (outcome.labels.empty()) return;
    const double cost = problem.costOf(outcome.labels);
    if (cost == kInfinity || std::abs(cost - outcome.objective) > 0.5 + 1e-6 * std::abs(cost)) {
      return;  // the library's answer is not a choice of its own program
    }
    const std::vector<int64_t> overload = problem.overloadOf(outcome.labels);
    const bool fits = !overloads(overload);
    if (fits && cost < best_cost) {
      best_cost = cost;
      best = outcome.labels;
    }
    // Rows only cut off choices, so a bound of any round is a bound of the whole program.
    if (outcome.optimal) {
      if (cost > incumbent_cost + 0.5) return;  // a lie: the incumbent is cheaper
      // It may have stopped one unit above the best, or further where units are too fine for it.
      const double bound = raised(cost - std::max(0.95, 0.5 + dropped) - rounding(cost));
      if (!reply.has_bound || bound > reply.bound) {
        reply.has_bound = 1;
        reply.bound = bound;
      }
    } else if (outcome.bound) {
      const double bound =
          raised(std::floor(*outcome.bound - 0.4 - dropped - rounding(*outcome.bound)));
      if (bound <= best_cost && (!reply.has_bound || bound > reply.bound)) {
        reply.has_bound = 1;
        reply.bound = bound;
      }
    }
    if (fits) {
      reply.finished = outcome.optimal ? 1 : 0;
      return;
    }
    if (!outcome.optimal) return;
    // Worst rows first, spread out: neighbours say nearly the same.
    std::vector<int32_t> violated;
    for (int32_t row = 0; row < problem.numRows(); ++row) {
      if (overload[static_cast<size_t>(row)] > 0) violated.push_back(row);
    }
    std::stable_sort(violated.begin(), violated.end(), [&](int32_t a, int32_t b) {
      return overload[static_cast<size_t>(a)] > overload[static_cast<size_t>(b)];
    });
    const int32_t min_distance = problem.numRows() / 60 + 1;
    std::vector<int32_t> taken;
    for (int32_t row : violated) {
      const bool close = std::any_of(taken.begin(), taken.end(), [&](int32_t other) {
        return std::abs(row - other) < min_distance;
      });
      if (close) continue;
      taken.push_back(row);
      if (taken.size() >= 8) break;
    }
    for (int32_t row : taken) {
      if (rows.insert(row).second) {
        program.addMemoryRow(row);
      } else {
        program.addCover(row, outcome.labels);  // within tolerance of a row it exactly violates
      }
    }
  }
}

bool writeAll(int fd, const void* data, size_t num_bytes) {
  const auto* bytes = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t wrote = write(fd, bytes, num_bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes += wrote;
    num_bytes -= static_cast<size_t>(wrote);
  }
  return true;
}

[[noreturn]] void workerMain(int fd, pid_t caller, const ReducedProblem& problem,
                             const IntegerProgramOptions& options) {
#ifdef __linux__
  // A caller that is killed takes its worker along (the caller's thread waits while it lives).
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != caller) _exit(1);
  const int null_fd = open("/dev/null", O_WRONLY);
  if (null_fd >= 0) {
    dup2(null_fd, STDOUT_FILENO);
    dup2(null_fd, STDERR_FILENO);
  }
  signal(SIGINT, SIG_IGN);  // the caller decides when to stop
  WorkerReply reply;
  std::vector<int32_t> labels;
  try {
    runRounds(problem, options, reply, labels);
  } catch (...) {
    _exit(1);
  }
  reply.has_labels = labels.empty() ? 0 : 1;
  const bool sent = writeAll(fd, &reply, sizeof(reply)) &&
                    writeAll(fd, labels.data(), labels.size() * sizeof(int32_t));
  _exit(sent ? 0 : 1);
}

// Reads until the worker closes its end; false on timeout or interrupt.
bool readUntilClosed(int fd, std::vector<char>& received, double time_limit_s,
                     const std::function<bool()>& stop) {
  const auto start = Clock::now();
  char chunk[1 << 14];
  while (secondsSince(start) < time_limit_s) {
    if (stop && stop()) return false;
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, 50);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    const ssize_t got = read(fd, chunk, sizeof(chunk));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) return true;
    received.insert(received.end(), chunk, chunk + got);
  }
  return false;
}

}  // namespace

double integerProgramSize(const ReducedProblem& problem) {
  double size = 0.0;
  for (const ReducedVariable& variable : problem.variables()) size += variable.numValues();
  return size + problem.numEntries();
}

IntegerProgramResult solveIntegerProgram(const ReducedProblem& problem,
                                         const IntegerProgramOptions& options) {
  IntegerProgramResult result;
  int ends[2];
  if (pipe(ends) != 0) return result;
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  std::fflush(nullptr);
  const pid_t caller = getpid();
  const pid_t worker = fork();
  if (worker < 0) {
    close(ends[0]);
    close(ends[1]);
    return result;
  }
  if (worker == 0) {
    close(ends[0]);
    workerMain(ends[1], caller, problem, options);
  }
  close(ends[1]);
  std::vector<char> received;
  const bool closed = readUntilClosed(ends[0], received, options.time_limit_s + 0.5, options.stop);
  close(ends[0]);
  if (!closed) kill(worker, SIGKILL);
  int status = 0;
  while (waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  if (!closed || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return result;

  WorkerReply reply;
  if (received.size() < sizeof(reply)) return result;
  std::copy_n(received.data(), sizeof(reply), reinterpret_cast<char*>(&reply));
  result.finished = reply.finished != 0;
  if (reply.has_bound) result.bound = reply.bound;
  const size_t num_variables = problem.variables().size();
  if (reply.has_labels && received.size() == sizeof(reply) + num_variables * sizeof(int32_t)) {
    result.labels.resize(num_variables);
    std::copy_n(received.data() + sizeof(reply), num_variables * sizeof(int32_t),
                reinterpret_cast<char*>(result.labels.data()));
  }
  return result;
}

}  // namespace shardwright
