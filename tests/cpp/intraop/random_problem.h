// Random problems and their exhaustive solution, the oracle of the solver's tests.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "intraop/problem.h"

namespace shardwright::testing {

struct RandomProblemOptions {
  int min_nodes = 3;
  int max_nodes = 8;
  int min_strategies = 1;
  int max_strategies = 5;
  double edge_probability = 0.4;
  double forbidden_share = 0.15;
  int64_t max_cost = 50;
  bool with_limit = true;
};

// Parallel edges, transposed tables, forbidden entries, nodes with one strategy, negative costs and
// nodes that hold bytes in several (also overlapping) intervals all occur.
Problem makeRandomProblem(std::mt19937_64& random, const RandomProblemOptions& options);

struct BruteForce {
  std::optional<int64_t> cost;        // none when infeasible
  std::optional<int64_t> least_peak;  // over all choices without a forbidden entry
};

// Tries every choice; bytes are counted point by point over the whole time range.
BruteForce solveByBruteForce(const Problem& problem);

}  // namespace shardwright::testing
