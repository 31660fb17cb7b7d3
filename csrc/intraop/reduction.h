// The solver's working copy of a Problem: variables over shrinking lists of values, at most one
// edge per pair, and the map back to the original strategies. Changed in place by presolve.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "intraop/certificate.h"
#include "intraop/problem.h"
#include "intraop/table_pool.h"

namespace shardwright {

// An original node decided by a variable: value a stands for strategy strategies[a].
struct Member {
  int32_t node = 0;
  ListRef strategies = kNoList;
};

struct Variable {
  bool alive = true;
  std::vector<double> costs;
  std::vector<Member> members;
  // Joint variables (see Reduction::join) that are or were merged into this one; node is the joint
  // variable's index and a strategy one of its first values.
  std::vector<Member> joints;
  std::vector<int32_t> edges;  // ids of alive edges

  int32_t numValues() const { return static_cast<int32_t>(costs.size()); }
};

struct ReductionEdge {
  bool alive = true;
  int32_t u = 0;
  int32_t v = 0;
  TableRef table = 0;  // rows are u's values

  int32_t other(int32_t variable) const { return variable == u ? v : u; }
};

class Reduction {
 public:
  // Costs are divided by 2^costShift() (rounded down) when their sums would not be exact in double;
  // bounds stay valid, and the shift is 0 for every realistic problem.
  explicit Reduction(const Problem& problem);

  const Problem& problem() const { return *problem_; }
  TablePool& pool() { return pool_; }
  const TablePool& pool() const { return pool_; }
  const std::vector<Variable>& variables() const { return variables_; }
  const std::vector<ReductionEdge>& edges() const { return edges_; }
  const Variable& variable(int32_t v) const { return variables_[static_cast<size_t>(v)]; }
  const ReductionEdge& edge(int32_t e) const { return edges_[static_cast<size_t>(e)]; }
  double offset() const { return offset_; }
  int costShift() const { return cost_shift_; }
  bool infeasible() const { return proof_ != InfeasibilityProof::kNone; }
  InfeasibilityProof proof() const { return proof_; }
  // Strategy of each original node whose variable is fixed, else -1.
  const std::vector<int32_t>& fixedStrategies() const { return fixed_strategies_; }

  // The edge's table with the given end as rows.
  TableRef tableFrom(int32_t e, int32_t variable);

  // Keeps only the given values (ascending). An empty list makes the reduction infeasible.
  void keepValues(int32_t v, const std::vector<int32_t>& values);
  // Takes a variable with one value out, adding its costs to neighbours and offset.
  void fixSingleton(int32_t v);
  // Merges v into u: u's value a implies v's value function[a]. Their edge must exist.
  void contract(int32_t u, int32_t v, ListRef function);
  // Replaces two neighbours by one new variable with a value for every allowed pair of theirs; any
  // third variable next to both then sees them together. Returns the new variable.
  int32_t join(int32_t u, int32_t v);
  // Removes an edge whose costs are row_part[a] + col_part[b].
  void absorbSeparable(int32_t e);
  void markInfeasible(InfeasibilityProof proof);

  // Frees tables no edge refers to any more.
  void releaseTables();

  // Counts every change, to notice a fixpoint.
  uint64_t numChanges() const { return num_changes_; }

 private:
  void addEdge(int32_t u, int32_t v, TableRef table);
  void removeEdge(int32_t e);
  static uint64_t pairKey(int32_t u, int32_t v);

  const Problem* problem_;
  TablePool pool_;
  std::vector<Variable> variables_;
  std::vector<ReductionEdge> edges_;
  std::unordered_map<uint64_t, int32_t> edge_of_pair_;
  std::vector<int32_t> fixed_strategies_;
  double offset_ = 0.0;
  int cost_shift_ = 0;
  InfeasibilityProof proof_ = InfeasibilityProof::kNone;
  uint64_t num_changes_ = 0;
};

}  // namespace shardwright
