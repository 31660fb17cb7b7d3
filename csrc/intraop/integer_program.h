// The last resort for what the bounds leave over: the residual problem as a 0-1 program for COIN-OR
// CBC, run in a worker process so that neither a hang nor a crash of the library reaches the
// caller.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "intraop/reduced_problem.h"

namespace shardwright {

struct IntegerProgramOptions {
  double time_limit_s = 10.0;  // wall clock; the worker is killed soon after
  // Best known choice; becomes a start, and tells when CBC lies. Empty when none is known.
  std::vector<int32_t> incumbent;
  // Memory rows to begin with; the others join when violated.
  std::vector<int32_t> rows;
  // Proven lower bound of the residual problem, used to scale the objective.
  double lower_bound = 0.0;
  std::function<bool()> stop;  // asked about twenty times per second; true kills the worker
};

struct IntegerProgramResult {
  bool finished = false;        // the search ended before the limit and its answer is consistent
  std::optional<double> bound;  // lower bound on costOf, only when consistent with the incumbent
  std::vector<int32_t> labels;  // best choice found within memory, maybe empty
};

// Columns and rows the program would have before memory rows.
double integerProgramSize(const ReducedProblem& problem);

// Solves the program. Only finite table entries get a column; memory rows join when violated.
// CBC's word counts only where costOf and overloadOf of its choice agree with it; so that there is
// no choice at all is not believed.
IntegerProgramResult solveIntegerProgram(const ReducedProblem& problem,
                                         const IntegerProgramOptions& options);

}  // namespace shardwright
