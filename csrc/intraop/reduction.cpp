#include "intraop/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace shardwright {
namespace {

// Sums up to 2^44 leave 8 fractional bits for multipliers; larger ones are shifted only past 2^51.
constexpr double kMaxExactMagnitude = 2251799813685248.0;

double largestFinite(std::span<const int64_t> costs) {
  double largest = 0.0;
  for (int64_t cost : costs) {
    if (cost != kForbidden) largest = std::max(largest, std::abs(static_cast<double>(cost)));
  }
  return largest;
}

int shiftFor(const Problem& problem) {
  std::vector<double> table_magnitude;
  for (const auto& table : problem.tables())
    table_magnitude.push_back(largestFinite(table->costs()));
  double magnitude = 0.0;
  for (const ChoiceNode& node : problem.nodes()) magnitude += largestFinite(node.costs);
  for (const ChoiceEdge& edge : problem.edges()) magnitude += table_magnitude[edge.table.index()];
  int shift = 0;
  while (std::ldexp(magnitude, -shift) > kMaxExactMagnitude) ++shift;
  return shift;
}

double toDouble(int64_t cost, int shift) {
  return cost == kForbidden ? kInfinity : static_cast<double>(cost >> shift);
}

}  // namespace

Reduction::Reduction(const Problem& problem)
    : problem_(&problem),
      fixed_strategies_(problem.numNodes(), -1),
      cost_shift_(shiftFor(problem)) {
  variables_.resize(problem.numNodes());
  for (size_t n = 0; n < problem.numNodes(); ++n) {
    Variable& variable = variables_[n];
    for (int64_t cost : problem.nodes()[n].costs) {
      variable.costs.push_back(toDouble(cost, cost_shift_));
    }
    std::vector<int32_t> identity(variable.costs.size());
    std::iota(identity.begin(), identity.end(), 0);
    variable.members.push_back({static_cast<int32_t>(n), pool_.internList(std::move(identity))});
  }
  std::vector<TableRef> table_ref;
  for (const auto& table : problem.tables()) {
    Matrix matrix{table->numRows(), table->numCols(), {}};
    matrix.costs.reserve(table->costs().size());
    for (int64_t cost : table->costs()) matrix.costs.push_back(toDouble(cost, cost_shift_));
    table_ref.push_back(pool_.intern(std::move(matrix)));
  }
  edge_of_pair_.reserve(problem.edges().size());
  for (const ChoiceEdge& edge : problem.edges()) {
    TableRef table = table_ref[edge.table.index()];
    if (edge.transposed) table = pool_.transposed(table);
    const auto u = static_cast<int32_t>(edge.u.index());
    const auto v = static_cast<int32_t>(edge.v.index());
    if (u == v) {
      Variable& variable = variables_[edge.u.index()];
      for (int32_t a = 0; a < variable.numValues(); ++a) {
        variable.costs[static_cast<size_t>(a)] += pool_.table(table).at(a, a);
      }
    } else {
      addEdge(u, v, table);
    }
  }
}

uint64_t Reduction::pairKey(int32_t u, int32_t v) {
  return (static_cast<uint64_t>(std::min(u, v)) << 32) | static_cast<uint64_t>(std::max(u, v));
}

void Reduction::addEdge(int32_t u, int32_t v, TableRef table) {
  const auto [it, added] =
      edge_of_pair_.emplace(pairKey(u, v), static_cast<int32_t>(edges_.size()));
  if (added) {
    variables_[static_cast<size_t>(u)].edges.push_back(it->second);
    variables_[static_cast<size_t>(v)].edges.push_back(it->second);
    edges_.push_back({true, u, v, table});
    return;
  }
  ReductionEdge& known = edges_[static_cast<size_t>(it->second)];
  known.table = pool_.sum(known.table, known.u == u ? table : pool_.transposed(table));
}

void Reduction::removeEdge(int32_t e) {
  ReductionEdge& edge = edges_[static_cast<size_t>(e)];
  edge.alive = false;
  edge_of_pair_.erase(pairKey(edge.u, edge.v));
  std::erase(variables_[static_cast<size_t>(edge.u)].edges, e);
  std::erase(variables_[static_cast<size_t>(edge.v)].edges, e);
}

TableRef Reduction::tableFrom(int32_t e, int32_t variable) {
  const ReductionEdge& edge = edges_[static_cast<size_t>(e)];
  return edge.u == variable ? edge.table : pool_.transposed(edge.table);
}

void Reduction::keepValues(int32_t v, const std::vector<int32_t>& values) {
  Variable& variable = variables_[static_cast<size_t>(v)];
  if (values.size() == variable.costs.size()) return;
  ++num_changes_;
  if (values.empty()) {
    markInfeasible(InfeasibilityProof::kPropagation);
    return;
  }
  std::vector<double> costs;
  costs.reserve(values.size());
  for (int32_t a : values) costs.push_back(variable.costs[static_cast<size_t>(a)]);
  variable.costs = std::move(costs);
  const ListRef keep = pool_.internList(values);
  for (std::vector<Member>* members : {&variable.members, &variable.joints}) {
    for (Member& member : *members) member.strategies = pool_.compose(member.strategies, keep);
  }
  for (int32_t e : variable.edges) {
    ReductionEdge& edge = edges_[static_cast<size_t>(e)];
    edge.table = edge.u == v ? pool_.gather(edge.table, keep, kNoList)
                             : pool_.gather(edge.table, kNoList, keep);
  }
}

void Reduction::fixSingleton(int32_t v) {
  Variable& variable = variables_[static_cast<size_t>(v)];
  ++num_changes_;
  offset_ += variable.costs[0];
  for (int32_t e : std::vector<int32_t>(variable.edges)) {
    const ReductionEdge& edge = edges_[static_cast<size_t>(e)];
    Variable& neighbour = variables_[static_cast<size_t>(edge.other(v))];
    // The table has one row or one column, so its storage is the neighbour's cost list either way.
    const std::vector<double>& costs = pool_.table(edge.table).costs;
    for (size_t b = 0; b < neighbour.costs.size(); ++b) neighbour.costs[b] += costs[b];
    removeEdge(e);
  }
  for (const Member& member : variable.members) {
    fixed_strategies_[static_cast<size_t>(member.node)] = pool_.list(member.strategies)[0];
  }
  variable.alive = false;
  variable.members.clear();
  variable.joints.clear();
}

void Reduction::contract(int32_t u, int32_t v, ListRef function) {
  ++num_changes_;
  const int32_t joint = edge_of_pair_.at(pairKey(u, v));
  const TableRef table = tableFrom(joint, u);
  const std::vector<int32_t> implied = pool_.list(function);
  Variable& merged = variables_[static_cast<size_t>(v)];
  Variable& kept = variables_[static_cast<size_t>(u)];
  for (size_t a = 0; a < implied.size(); ++a) {
    const int32_t b = implied[a];
    kept.costs[a] +=
        merged.costs[static_cast<size_t>(b)] + pool_.table(table).at(static_cast<int32_t>(a), b);
  }
  for (const Member& member : merged.members) {
    kept.members.push_back({member.node, pool_.compose(member.strategies, function)});
  }
  for (const Member& joint_variable : merged.joints) {
    kept.joints.push_back(
        {joint_variable.node, pool_.compose(joint_variable.strategies, function)});
  }
  merged.members.clear();
  merged.joints.clear();
  removeEdge(joint);
  for (int32_t e : std::vector<int32_t>(merged.edges)) {
    const int32_t w = edges_[static_cast<size_t>(e)].other(v);
    const TableRef moved = pool_.gather(tableFrom(e, v), function, kNoList);
    removeEdge(e);
    addEdge(u, w, moved);
  }
  merged.alive = false;
}

int32_t Reduction::join(int32_t u, int32_t v) {
  ++num_changes_;
  const int32_t between = edge_of_pair_.at(pairKey(u, v));
  const TableRef table = tableFrom(between, u);
  const auto id = static_cast<int32_t>(variables_.size());
  Variable joint;
  std::vector<int32_t> value_u;
  std::vector<int32_t> value_v;
  for (int32_t a = 0; a < variable(u).numValues(); ++a) {
    for (int32_t b = 0; b < variable(v).numValues(); ++b) {
      const double cost = variable(u).costs[static_cast<size_t>(a)] +
                          variable(v).costs[static_cast<size_t>(b)] + pool_.table(table).at(a, b);
      if (cost == kInfinity) continue;
      value_u.push_back(a);
      value_v.push_back(b);
      joint.costs.push_back(cost);
    }
  }
  removeEdge(between);
  std::vector<int32_t> identity(joint.costs.size());
  std::iota(identity.begin(), identity.end(), 0);
  joint.joints.push_back({id, pool_.internList(std::move(identity))});
  variables_.push_back(std::move(joint));
  if (variables_.back().costs.empty()) markInfeasible(InfeasibilityProof::kPropagation);
  for (const auto& [end, values] : {std::pair{u, pool_.internList(std::move(value_u))},
                                    std::pair{v, pool_.internList(std::move(value_v))}}) {
    Variable& part = variables_[static_cast<size_t>(end)];
    Variable& whole = variables_.back();
    for (const Member& member : part.members) {
      whole.members.push_back({member.node, pool_.compose(member.strategies, values)});
    }
    for (const Member& member : part.joints) {
      whole.joints.push_back({member.node, pool_.compose(member.strategies, values)});
    }
    for (int32_t e : std::vector<int32_t>(part.edges)) {
      const int32_t w = edges_[static_cast<size_t>(e)].other(end);
      const TableRef moved = pool_.gather(tableFrom(e, end), values, kNoList);
      removeEdge(e);
      addEdge(id, w, moved);
    }
    part.alive = false;
    part.members.clear();
    part.joints.clear();
  }
  return id;
}

void Reduction::absorbSeparable(int32_t e) {
  ++num_changes_;
  const ReductionEdge edge = edges_[static_cast<size_t>(e)];
  const TableFacts& facts = pool_.facts(edge.table);
  Variable& u = variables_[static_cast<size_t>(edge.u)];
  Variable& v = variables_[static_cast<size_t>(edge.v)];
  for (size_t a = 0; a < u.costs.size(); ++a) u.costs[a] += facts.row_part[a];
  for (size_t b = 0; b < v.costs.size(); ++b) v.costs[b] += facts.col_part[b];
  removeEdge(e);
}

void Reduction::markInfeasible(InfeasibilityProof proof) {
  if (proof_ == InfeasibilityProof::kNone) proof_ = proof;
}

void Reduction::releaseTables() {
  std::vector<char> marked(pool_.numTables(), 0);
  for (const ReductionEdge& edge : edges_) {
    if (edge.alive) marked[static_cast<size_t>(edge.table)] = 1;
  }
  pool_.keepOnly(marked);
}

}  // namespace shardwright
