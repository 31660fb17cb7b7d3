// Entry point of the intra-operator solver: the best choice for a Problem with a proven bound.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "intraop/certificate.h"
#include "intraop/problem.h"

namespace shardwright {

// State of a running search, handed to SolveOptions::on_progress.
struct SolveProgress {
  std::string phase;
  std::optional<int64_t> cost;         // best valid choice so far
  std::optional<int64_t> lower_bound;  // best proven bound so far
  double seconds = 0.0;
};

struct SolveOptions {
  // Wall-clock seconds; the best verified choice found by then is returned.
  double time_limit_s = 60.0;
  // Stop once (cost - lower_bound) / |cost| is at most this; 0 asks for a proof.
  double relative_gap = 0.0;
  // Once the gap is at most this, only what is quick goes on: no integer program, no search until
  // the time limit; elimination still proves what it can. The planner's relative_gap sets this one.
  double good_gap = 0.0;
  // Exact elimination is tried while its work (table entries visited) is at most this.
  double max_elimination_work = 4e9;
  // ... and while the tables it keeps stay below this.
  double max_elimination_bytes = 2e9;
  // Small residual problems are searched exhaustively up to this many partial choices.
  size_t max_enumeration_nodes = 200'000;
  // Integer program (CBC) on what the bounds leave over; off leaves the gap unproven.
  bool use_integer_program = true;
  // Prune and contract before solving; off only to test the rest of the solver.
  bool use_presolve = true;
  // When infeasible, look for the smallest limit that would do (seconds; 0 = do not).
  double smallest_peak_time_s = 5.0;
  // Called at most about ten times per second from the calling thread.
  std::function<void(const SolveProgress&)> on_progress;
  // Set by another thread (or a signal handler) to stop early with the best choice so far.
  const std::atomic<bool>* interrupt = nullptr;
};

// Solves a problem. The answer is certified (see certify); a search that ends before its time limit
// gives the same choice every time. One without a proof, or the gap asked for, lasts until then.
// Example: two nodes with costs {1, 2} and {4, 3} and no edges give cost 4, choice {0, 1},
// kOptimal.
Answer solve(const Problem& problem, const SolveOptions& options = {});

// Smallest peak (bytes) over all choices that break no forbidden entry, ignoring cost and limit.
struct PeakAnswer {
  std::vector<int32_t> choice;  // empty when none was found
  int64_t peak_bytes = 0;       // of the choice
  int64_t bound_bytes = 0;      // proven: no choice needs less
  bool infeasible = false;      // proven: no choice exists at any limit
};
PeakAnswer minimizePeak(const Problem& problem, double time_limit_s,
                        const std::atomic<bool>* interrupt = nullptr,
                        const std::function<void(const SolveProgress&)>& on_progress = {});

}  // namespace shardwright
