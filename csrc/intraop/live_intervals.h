// When the buffers of a step are alive if conversions happen where the emission puts them. Used by
// the model of the search only; the certificate sweeps on its own.
#pragma once

#include <vector>

#include "intraop/problem.h"
#include "sharding/conversion_points.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

// One value that is no view. Times are node indices; a node's inputs and outputs are both alive at
// its own time.
struct ValueLife {
  std::int64_t def = 0;  // when it is made; 0 for inputs
  // End (exclusive) of the value's own buffer as far as no decision changes it: the whole step for
  // inputs and results, the uses of slices and in-place updates that share the buffer, the one
  // consumer of a value without conversion points; def + 1 where a conversion takes over at once.
  std::int64_t own_end = 0;
  bool owns_storage = true;          // false: lives in another value's buffer
  bool outlives_conversion = false;  // own_end > def + 1 although it has conversion points
};

class LiveIntervals {
 public:
  LiveIntervals(const ShardedGraph& graph, const std::vector<ConversionPoint>& conversions);

  const ValueLife& life(ValueRef value) const {
    return lives_[value.node.index()][static_cast<std::size_t>(value.output)];
  }
  std::int64_t numTimes() const { return static_cast<std::int64_t>(lives_.size()); }
  // First and last time any use of the conversion reads it; results read at the last time.
  std::int64_t firstUse(int conversion) const {
    return spans_[static_cast<std::size_t>(conversion)].begin;
  }
  std::int64_t lastUse(int conversion) const {
    return spans_[static_cast<std::size_t>(conversion)].end;
  }

 private:
  std::vector<std::vector<ValueLife>> lives_;
  std::vector<LiveInterval> spans_;  // begin = first use, end = last use (inclusive)
};

}  // namespace shardwright
