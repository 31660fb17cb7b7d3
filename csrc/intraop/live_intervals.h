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
  // When it is made; 0 for inputs. A sum over microbatches is there before, see ModelMemory.
  std::int64_t def = 0;
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
  // From the beginning to the last op of backward, while other microbatches of a pipeline wait for
  // their backward; empty where there is no backward.
  LiveInterval microbatches() const { return microbatches_; }
  // Whether a buffer made at `made` and alive until `end` is kept for backward, or its late part,
  // by a microbatch that waits for it.
  bool waitsForBackward(std::int64_t made, std::int64_t end) const {
    return (made < backward_begin_ && backward_begin_ < end) ||
           (made < late_begin_ && late_begin_ < end);
  }
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
  LiveInterval microbatches_;
  std::int64_t backward_begin_ = 0;  // right after the last op of forward before backward's last
  std::int64_t late_begin_ = 0;      // first late op of backward; 0 without any
};

}  // namespace shardwright
