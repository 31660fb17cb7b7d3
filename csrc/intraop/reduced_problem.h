// What presolve leaves, packed for the searches: variables in program order, oriented edges over
// shared tables, binding memory rows only. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "intraop/memory_rows.h"
#include "intraop/reduction.h"

namespace shardwright {

struct ReducedVariable {
  std::vector<double> costs;
  std::vector<MemorySegment> memory;  // rows are indices into ReducedProblem::slack_bytes
  int32_t reduction_variable = 0;
  std::vector<Member> members;            // original nodes it decides
  std::vector<Member> joints;             // as in Variable
  std::vector<int32_t> edges_to_later;    // ids of edges where this variable is u
  std::vector<int32_t> edges_to_earlier;  // ids of edges where this variable is v

  int32_t numValues() const { return static_cast<int32_t>(costs.size()); }
};

struct ReducedEdge {
  int32_t u = 0;  // u < v
  int32_t v = 0;
  int32_t table = 0;             // rows are u's values
  int32_t transposed_table = 0;  // rows are v's values
};

class ReducedProblem {
 public:
  // Reads the reduction's present state; the reduction may change afterwards.
  ReducedProblem(Reduction& reduction, const MemoryLayout& layout);
  // The part of another problem in which only the variables in `free` (ascending) may change, the
  // others keeping their labels. Its variables are those of `free`, in order; labels must fit.
  ReducedProblem(const ReducedProblem& whole, std::span<const int32_t> labels,
                 const std::vector<int32_t>& free);

  const std::vector<ReducedVariable>& variables() const { return variables_; }
  const std::vector<ReducedEdge>& edges() const { return edges_; }
  const std::vector<Matrix>& tables() const { return *tables_; }
  const Matrix& table(int32_t id) const { return (*tables_)[static_cast<size_t>(id)]; }
  const std::vector<int64_t>& slackBytes() const { return slack_bytes_; }
  // MemoryLayout row of each row, to carry multipliers over to another reduction.
  const std::vector<int32_t>& layoutRows() const { return layout_rows_; }
  int32_t numVariables() const { return static_cast<int32_t>(variables_.size()); }
  int32_t numRows() const { return static_cast<int32_t>(slack_bytes_.size()); }
  double offset() const { return offset_; }
  // Entries of all edges' tables, shared ones counted every time.
  double numEntries() const;
  // Power of two all sums may be multiplied by and stay exact in double.
  double quantum() const { return quantum_; }

  // Offset plus the costs of one value per variable; infinity when a pair is forbidden.
  double costOf(std::span<const int32_t> labels) const;
  // Bytes above the slack per row (positive = violated).
  std::vector<int64_t> overloadOf(std::span<const int32_t> labels) const;
  // Strategy of every original node. pool must be the one of the reduction this was made from.
  std::vector<int32_t> expand(const TablePool& pool, std::span<const int32_t> labels) const;

 private:
  void linkEdges();

  std::vector<ReducedVariable> variables_;
  std::vector<ReducedEdge> edges_;
  std::shared_ptr<const std::vector<Matrix>> tables_;
  std::vector<int64_t> slack_bytes_;
  std::vector<int32_t> layout_rows_;
  std::vector<int32_t> fixed_strategies_;
  double offset_ = 0.0;
  double quantum_ = 1.0;
};

}  // namespace shardwright
