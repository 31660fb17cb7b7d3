// The stage search: which layers form a stage, and on which submesh, in which form, it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "interop/stage_certificate.h"
#include "interop/stage_problem.h"

namespace shardwright {

struct StageSearchOptions {
  double time_limit_s = 60.0;
  // Problems with more arcs are filtered by a first search with fewer shapes; the answer is the
  // same.
  double most_arcs = 2e7;
  // Asked now and then; true ends the search with the best found so far.
  std::function<bool()> is_interrupted = {};
};

enum class StageStatus : std::uint8_t { kOptimal, kFeasible, kInfeasible, kTimeLimit };

struct StageAnswer {
  StageStatus status = StageStatus::kTimeLimit;
  std::vector<PlannedStage> stages;  // empty when none were found
  StageEvaluation evaluation;        // of the stages, by code of its own
  double lower_bound = 0;            // no stages take less time
  int num_exact_runs = 0;
  double seconds = 0;
};

// The stages of least time (see StageEvaluation::time) for the tables, with the microbatches in
// flight that the schedule has behind each stage. Exact; cut by the time limit or an interrupt, the
// best stages so far with a valid lower bound. Deterministic unless cut.
// Example: layers of 4, 2, 1 and 1 units that any number d of one host's four devices runs in
// 1 / d * (1 + 0.1 log2 d) of that, 8 microbatches: one stage on (1, 4), time 8 * 2.4 = 19.2.
// Throws ProblemError [E221] for tables that do not fit together, InternalError [E921] when the
// certificate disagrees with the search.
StageAnswer searchStages(const StageProblem& problem, const StageSearchOptions& options = {});

// "optimal", "feasible", "infeasible", "time_limit".
const char* toString(StageStatus status);

}  // namespace shardwright
