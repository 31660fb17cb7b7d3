// Random stage problems and their exhaustive solution, the oracle of the stage search's tests.
#pragma once

#include <limits>
#include <random>
#include <vector>

#include "interop/stage_problem.h"

namespace shardwright::testing {

struct RandomStageOptions {
  int most_layers = 7;
  bool with_boundaries = false;   // costs and specs at boundaries
  bool with_memory = false;       // memory and a variant that recomputes
  bool with_stage_count = false;  // every other problem says how many stages
};

StageProblem makeRandomStageProblem(std::mt19937_64& random, const RandomStageOptions& options);

// The least time over every choice of stages, infinity when none is valid. Tries them all.
double leastTimeByExhaustion(const StageProblem& problem);

}  // namespace shardwright::testing
