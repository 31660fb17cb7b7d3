// Families of small problems that each strain another part of the solver, and their optimum by
// trying every choice. Shares nothing with the solver but Problem itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/checked.h"
#include "intraop/problem.h"

namespace shardwright::testing {

// One problem of 3 to 8 nodes and at most some 20,000 choices. The seed alone decides: graph
// (random, chain, cycle, hub, clique, repeated layers, without edges), sizes (many nodes with one
// strategy), costs (tied, zero, negative, up to 2^53), forbidden entries (none to most), aliases,
// parallel, transposed and self edges, bytes, intervals and the limit (none, loose, exactly a
// choice's peak, one byte less, zero).
Problem makeFamilyProblem(uint64_t seed);

// What no solver can better.
struct Optimum {
  std::optional<Int128> cost;        // none when no choice fits
  std::optional<Int128> least_peak;  // over the choices without a forbidden entry
  int64_t num_choices = 0;
};

// Tries every choice with 128-bit sums; bytes are added up at every interval's begin.
Optimum findOptimum(const Problem& problem);

// Cost of one choice, none when it breaks a rule (limit included).
std::optional<Int128> priceOf(const Problem& problem, const std::vector<int32_t>& choice);

// Nodes, edges and limit in words, for a failing test's message.
std::string describe(const Problem& problem);

}  // namespace shardwright::testing
