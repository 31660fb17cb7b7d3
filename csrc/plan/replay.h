// Runs a plan through in execution order without computing: which conversions take place, and which
// buffers are alive when. Shares no code with the model of the search.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/cluster.h"
#include "plan/plan.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

enum class BufferKind : std::uint8_t { kParameter, kGradient, kOptimizer, kActivation, kOther };

// One piece of memory of one device, alive over the moments [made, last_read].
struct Buffer {
  ValueRef value;  // whose content it holds
  ShardingSpec spec;
  std::int64_t bytes = 0;
  BufferKind kind = BufferKind::kActivation;
  std::int64_t made = 0;
  std::int64_t last_read = 0;
  bool per_microbatch = false;  // a pipeline stage has one for each microbatch in flight
};

// One conversion as it takes place: for a conversion point, a single consumer, or a result.
struct ConversionEvent {
  ValueRef value;  // the root
  ShardingSpec from;
  ShardingSpec to;
  Phase phase = Phase::kForward;  // whose weight it has
  NodeId node;                    // the op it is made for
};

struct Replay {
  std::vector<Buffer> buffers;
  std::vector<ConversionEvent> conversions;
  // What happens at each moment: the op that runs or that a conversion is made for.
  std::vector<NodeId> moments;
  // From this moment on results are read, in the name of the ops that made them.
  std::int64_t end_of_ops = 0;
};

// Follows the emission: conversions of op outputs right after the op, those of inputs right before
// the first use of their group, those of single consumers right before these; a buffer dies when it
// has been read last. Throws PlanError [E314] where a value arrives in a spec that cannot be
// converted or must not be (in-place updates).
Replay replayPlan(const ShardedGraph& graph, const StagePlan& stage, const DeviceMesh& mesh);

}  // namespace shardwright
