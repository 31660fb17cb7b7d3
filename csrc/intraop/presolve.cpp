#include "intraop/presolve.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace shardwright {
namespace {

// Removes values that are forbidden or have no partner on some edge, until none is left.
void makeArcConsistent(Reduction& reduction) {
  std::vector<int32_t> queue;
  std::vector<char> queued(reduction.variables().size(), 0);
  for (size_t v = 0; v < queued.size(); ++v) {
    if (!reduction.variables()[v].alive) continue;
    queue.push_back(static_cast<int32_t>(v));
    queued[v] = 1;
  }
  std::vector<char> supported;
  std::vector<int32_t> keep;
  while (!queue.empty() && !reduction.infeasible()) {
    const int32_t v = queue.back();
    queue.pop_back();
    queued[static_cast<size_t>(v)] = 0;
    const Variable& variable = reduction.variable(v);
    supported.assign(variable.costs.size(), 1);
    for (size_t a = 0; a < supported.size(); ++a) {
      if (variable.costs[a] == kInfinity) supported[a] = 0;
    }
    for (int32_t e : variable.edges) {
      const TableFacts& facts = reduction.pool().facts(reduction.tableFrom(e, v));
      if (facts.supported_rows.size() == supported.size()) continue;
      std::vector<char> on_edge(supported.size(), 0);
      for (int32_t a : facts.supported_rows) on_edge[static_cast<size_t>(a)] = 1;
      for (size_t a = 0; a < supported.size(); ++a) supported[a] &= on_edge[a];
    }
    keep.clear();
    for (size_t a = 0; a < supported.size(); ++a) {
      if (supported[a]) keep.push_back(static_cast<int32_t>(a));
    }
    if (keep.size() == supported.size()) continue;
    reduction.keepValues(v, keep);
    if (reduction.infeasible()) return;
    for (int32_t e : reduction.variable(v).edges) {
      const int32_t w = reduction.edge(e).other(v);
      if (queued[static_cast<size_t>(w)]) continue;
      queue.push_back(w);
      queued[static_cast<size_t>(w)] = 1;
    }
  }
}

// A kept node's variable has the node's index, since it is merged into none.
bool isKept(const std::vector<int32_t>& kept_nodes, int32_t v) {
  return std::find(kept_nodes.begin(), kept_nodes.end(), v) != kept_nodes.end();
}

void fixSingletons(Reduction& reduction, const std::vector<int32_t>& kept_nodes) {
  for (size_t v = 0; v < reduction.variables().size(); ++v) {
    const auto id = static_cast<int32_t>(v);
    const Variable& variable = reduction.variables()[v];
    if (variable.alive && variable.numValues() == 1 && !isKept(kept_nodes, id)) {
      reduction.fixSingleton(id);
    }
  }
}

// Entries the edges of v would gain if their v side grew to num_values.
double growthOfMerge(const Reduction& reduction, int32_t v, int32_t through, double num_values) {
  double growth = 0.0;
  for (int32_t e : reduction.variable(v).edges) {
    if (e == through) continue;
    const double cols = reduction.variable(reduction.edge(e).other(v)).numValues();
    growth += (num_values - reduction.variable(v).numValues()) * cols;
  }
  return growth;
}

void contractFunctionalEdges(Reduction& reduction, const std::vector<int32_t>& kept_nodes) {
  for (size_t e = 0; e < reduction.edges().size(); ++e) {
    const auto id = static_cast<int32_t>(e);
    for (int side = 0; side < 2; ++side) {
      const ReductionEdge& edge = reduction.edge(id);
      if (!edge.alive) break;
      const int32_t u = side == 0 ? edge.u : edge.v;
      const int32_t v = edge.other(u);
      if (isKept(kept_nodes, v)) continue;
      const ListRef function = reduction.pool().facts(reduction.tableFrom(id, u)).function;
      if (function == kNoList) continue;
      // Merging into a much larger list can cost more entries than the edge it saves.
      const double num_u = reduction.variable(u).numValues();
      const double num_v = reduction.variable(v).numValues();
      if (growthOfMerge(reduction, v, id, num_u) > 4.0 * num_u * num_v) continue;
      reduction.contract(u, v, function);
      break;
    }
  }
}

void absorbSeparableEdges(Reduction& reduction) {
  for (size_t e = 0; e < reduction.edges().size(); ++e) {
    const auto id = static_cast<int32_t>(e);
    if (reduction.edge(id).alive && reduction.pool().facts(reduction.edge(id).table).separable) {
      reduction.absorbSeparable(id);
    }
  }
}

// A variable with one neighbour (or none) and no say in memory answers each of the neighbour's
// values with its own best one.
void contractBestResponses(Reduction& reduction, const MemoryState& memory,
                           const std::vector<int32_t>& kept_nodes) {
  for (size_t v = 0; v < reduction.variables().size(); ++v) {
    const auto id = static_cast<int32_t>(v);
    const Variable& variable = reduction.variable(id);
    if (!variable.alive || variable.edges.size() > 1 || isKept(kept_nodes, id)) continue;
    if (v < memory.segments.size() && !memory.segments[v].empty()) continue;
    if (variable.edges.empty()) {
      const auto best = std::min_element(variable.costs.begin(), variable.costs.end());
      reduction.keepValues(id, {static_cast<int32_t>(best - variable.costs.begin())});
      continue;
    }
    const int32_t e = variable.edges[0];
    const int32_t u = reduction.edge(e).other(id);
    const TableRef table = reduction.tableFrom(e, u);
    const Matrix& costs = reduction.pool().table(table);
    std::vector<int32_t> response;
    for (int32_t a = 0; a < costs.num_rows; ++a) {
      int32_t best = 0;
      double best_cost = kInfinity;
      for (int32_t b = 0; b < costs.num_cols; ++b) {
        const double cost = costs.at(a, b) + variable.costs[static_cast<size_t>(b)];
        if (cost < best_cost) {
          best_cost = cost;
          best = b;
        }
      }
      response.push_back(best);
    }
    reduction.contract(u, id, reduction.pool().internList(std::move(response)));
  }
}

}  // namespace

void presolve(Reduction& reduction, const MemoryLayout& layout, const PresolveOptions& options) {
  const auto stop = [&] {
    return reduction.infeasible() || (options.out_of_time && options.out_of_time());
  };
  for (int round = 0; round < options.max_rounds && !stop(); ++round) {
    const uint64_t before = reduction.numChanges();
    makeArcConsistent(reduction);
    if (stop()) return;
    fixSingletons(reduction, options.kept_nodes);
    contractFunctionalEdges(reduction, options.kept_nodes);
    absorbSeparableEdges(reduction);
    if (stop()) return;
    pruneByMemory(reduction, layout);
    if (stop()) return;
    // Contraction of leaves can build long lists; cheap steps go first.
    if (reduction.numChanges() != before && round < options.max_rounds / 2) continue;
    contractBestResponses(reduction, measureMemory(reduction, layout), options.kept_nodes);
    if (options.dominance && !stop()) removeDominated(reduction, layout, options.kept_nodes);
    if (reduction.numChanges() == before) break;
    reduction.releaseTables();
  }
}

}  // namespace shardwright
