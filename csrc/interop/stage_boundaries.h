// Boundaries of a stage problem: ports with the same costs are one class, so that a state says no
// more than the costs ask for.
#pragma once

#include <cstdint>
#include <vector>

#include "interop/stage_problem.h"

namespace shardwright {

// What one pair of classes of ports at a boundary costs.
struct Crossing {
  std::int32_t before = 0;  // class of the port in front of the boundary
  std::int32_t after = 0;
  double time = 0;
  double link_time = 0;
};

// Ports of a boundary with the same costs are one class.
struct BoundaryClasses {
  std::vector<std::int32_t> before;  // by port
  std::vector<std::int32_t> after;
  std::vector<Crossing> crossings;  // possible ones only
};

// The classes of the boundary in front of `layer`. The outer ends and free boundaries have one
// class on both sides and nothing to pay. Contract: the problem is valid, 0 <= layer <= num_layers.
BoundaryClasses classifyBoundary(const StageProblem& problem, int layer);

}  // namespace shardwright
