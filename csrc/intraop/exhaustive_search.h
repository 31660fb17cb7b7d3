// Depth-first search with a simple bound: exact on small residual problems, and the one proof of
// infeasibility that needs no outside library.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "intraop/reduced_problem.h"

namespace shardwright {

struct ExhaustiveResult {
  bool finished = false;        // the whole tree was searched
  std::vector<int32_t> labels;  // best choice below the cutoff, empty when none was found
  double cost = kInfinity;
};

// Searches choices that cost less than cutoff and fit every memory row, visiting at most max_nodes
// partial choices. finished with no labels proves that no such choice exists.
ExhaustiveResult searchExhaustively(const ReducedProblem& problem, double cutoff, size_t max_nodes,
                                    const std::function<bool()>& stop = {});

}  // namespace shardwright
