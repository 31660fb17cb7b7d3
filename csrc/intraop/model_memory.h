// What the decisions of the model hold in memory and when. Used by the search only; the certificate
// has a sweep of its own.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "intraop/live_intervals.h"
#include "intraop/model.h"
#include "intraop/problem.h"
#include "sharding/conversion_points.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

// Pieces of memory per decision. A pipeline stage with k microbatches in flight computes one of
// them while the others hold what they keep from forward for backward: each buffer made in forward
// and alive into backward has, besides its own interval, a piece of (k - 1) times its bytes over
// all of forward and backward. What is not there once per microbatch has none: inputs (but those
// received anew for each), sums over microbatches, joined results.
//
// A sum over microbatches is in memory from the beginning on, in the spec in which its terms are
// held: up to the node that gives it, it belongs to the decision about these.
//
// Example: of x -> relu -> y, with y read in backward, and k = 3, y's own piece has its interval
// and bytes b, and another 2 b from the first op to the last of backward.
class ModelMemory {
 public:
  // Keeps references to all but the number.
  ModelMemory(const ShardedGraph& graph, const std::vector<ConversionPoint>& conversions,
              const LiveIntervals& intervals, int microbatches_in_flight);

  // Of a node that is no view; `output_bytes` as StrategySet's.
  std::vector<MemoryPiece> ofOp(NodeId node,
                                const std::vector<std::vector<std::int64_t>>& output_bytes) const;

  // Of a conversion point with these strategies.
  std::vector<MemoryPiece> ofConversion(int index,
                                        const std::vector<ConversionStrategy>& strategies,
                                        const std::vector<int>& mesh_shape) const;

 private:
  bool isBroadcast(NodeId node, int output) const;
  bool isPerMicrobatch(ValueRef value) const;
  void add(std::vector<MemoryPiece>& pieces, LiveInterval interval, std::int64_t made,
           std::vector<std::int64_t> bytes, bool per_microbatch) const;

  void addSums(std::vector<MemoryPiece>& pieces, const std::vector<std::int64_t>& ends,
               const std::vector<std::int64_t>& bytes) const;

  const ShardedGraph* graph_;
  const std::vector<ConversionPoint>* conversions_;
  const LiveIntervals* intervals_;
  std::int64_t num_waiting_;
  // Sums over microbatches of what conversion points and other values hold: when each is given.
  std::vector<std::vector<std::int64_t>> sums_of_point_;
  std::map<ValueRef, std::vector<std::int64_t>> sums_of_value_;
};

}  // namespace shardwright
