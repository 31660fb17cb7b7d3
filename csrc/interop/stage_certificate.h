// Independent check of the stage search: prices stages from the tables alone. Shares no code with
// the search.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "interop/stage_problem.h"

namespace shardwright {

// Layers [begin, end) run as one stage of a kind.
struct PlannedStage {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t kind = 0;  // index into StageProblem::kinds

  friend bool operator==(const PlannedStage&, const PlannedStage&) = default;
};

struct StageEvaluation {
  std::string violation;  // empty when the stages are valid
  // Sum of the steps of the pipeline plus (B - 1) times the longest: of 1F1B and GPipe with steps
  // in a row (Alpa, section 5.1). Steps are the stages, and with TransferCharge::kLink also the
  // transfers between them.
  double time = 0;
  double longest_step = 0;
  int num_devices = 0;
  std::vector<double> stage_times;               // with the transfers they are charged
  std::vector<std::int64_t> stage_memory_bytes;  // empty without memory tables
  bool valid() const { return violation.empty(); }
};

StageEvaluation evaluateStages(const StageProblem& problem, std::span<const PlannedStage> stages);

}  // namespace shardwright
