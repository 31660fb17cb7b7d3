// Memory constraints of a Reduction: one row per maximal set of values alive together (the maximal
// cliques of the interval graph), and what each variable adds to the rows it spans.
#pragma once

#include <cstdint>
#include <vector>

#include "intraop/reduction.h"

namespace shardwright {

// Bytes a variable holds above its least value, on rows [row_begin, row_end).
struct MemorySegment {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  std::vector<int64_t> excess_bytes;  // per value; the least is 0
  int64_t maxExcess() const;
};

// Which rows exist and which rows each piece of an original node spans; fixed for a problem.
class MemoryLayout {
 public:
  // No rows when the problem has no memory limit.
  explicit MemoryLayout(const Problem& problem);

  struct Span {
    int32_t row_begin = 0;
    int32_t row_end = 0;
    int32_t piece = 0;
  };

  int32_t numRows() const { return num_rows_; }
  const std::vector<Span>& spansOf(int32_t node) const { return spans_[static_cast<size_t>(node)]; }

 private:
  int32_t num_rows_ = 0;
  std::vector<std::vector<Span>> spans_;
};

// Memory use of a reduction in its present state.
struct MemoryState {
  std::vector<std::vector<MemorySegment>> segments;  // per variable, ascending, disjoint
  std::vector<int64_t> slack_bytes;  // per row: limit - fixed nodes - least of every variable
};

MemoryState measureMemory(const Reduction& reduction, const MemoryLayout& layout);

// Rows that a choice could violate: those whose worst load exceeds the limit, without rows implied
// by a neighbouring row. Ascending.
std::vector<int32_t> bindingRows(const MemoryState& state);

// Removes values that cannot fit even when every other variable takes its least. Marks the
// reduction infeasible when the least loads already exceed the limit. Returns whether anything
// changed.
bool pruneByMemory(Reduction& reduction, const MemoryLayout& layout);

}  // namespace shardwright
