// Exact steps on a Reduction: each keeps at least one optimal choice (or all choices' costs),
// and the reduction remembers how to get back to the original strategies.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "intraop/memory_rows.h"
#include "intraop/reduction.h"

namespace shardwright {

struct PresolveOptions {
  bool dominance = true;  // drop values that another value beats in cost and memory
  int max_rounds = 40;
  // Nodes that keep every value that can be part of a choice: what each costs is wanted, not only
  // the best. Their variables are merged into no other and stay, even with one value.
  std::vector<int32_t> kept_nodes = {};
  // Asked between steps; true stops early (the reduction stays exact).
  std::function<bool()> out_of_time;
};

// Reduces to a fixpoint: arc consistency, singletons, functional edges, best responses of
// one-neighbour variables, separable edges, memory pruning, dominance.
void presolve(Reduction& reduction, const MemoryLayout& layout,
              const PresolveOptions& options = {});

// Removes values dominated by another value of the same variable, none of kept nodes. Returns
// whether anything changed.
bool removeDominated(Reduction& reduction, const MemoryLayout& layout,
                     const std::vector<int32_t>& kept_nodes = {});

}  // namespace shardwright
