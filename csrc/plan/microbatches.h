// A step cut over time: what each node does when the batch comes in equal parts, one after the
// other, and what is added up over the parts before the parameters are updated.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/local_arguments.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

struct MicrobatchOptions {
  int num_microbatches = 1;
  // Batch inputs that come in parts, by node; every other input is whole in each part.
  std::vector<NodeId> split_inputs;
  // Nodes of batch normalisation -> over how many elements of the whole batch it takes its mean.
  // Their statistics are those of the part, and such counts among their arguments change with it.
  std::map<NodeId, std::int64_t> statistics;
};

// How a value relates to the parts.
enum class OverTime : std::uint8_t {
  kSame,     // equal in every part
  kSplit,    // each part has its own slice of one dim
  kPending,  // each part has a term; the value is the sum of all terms
  kVarying,  // a statistic of the part (batch normalisation)
};
const char* overTimeName(OverTime over_time);  // "same", "split", "pending", "varying"

struct MicrobatchNode {
  bool once = false;  // runs when all parts are done, and not in each
  LocalCall call;     // on the part; operands are LocalRef{node, output} of the graph
  std::vector<std::vector<std::int64_t>> output_shapes;  // on the part
  std::vector<OverTime> outputs;
};

struct MicrobatchStep {
  std::vector<MicrobatchNode> nodes;  // one per graph node
  // Values of parts that nodes which run once, or results, read: to be added up, in graph order.
  std::vector<ValueRef> accumulated;
  // Per graph output the dim along which the parts are joined, -1 for none.
  std::vector<int> joined_dims;
  // Functions of the batch alone that are needed whole within the parts (the number of targets
  // that count): where there are any, nothing else here is valid. Compute these from the whole
  // batch and cut again.
  std::vector<ValueRef> whole;
};

// Cuts a step into `num_microbatches` parts. The parts are to time what ranks are to a mesh axis:
// the batch is split, inputs that live on are replicated, and the sharding rules say of every value
// whether it is the same in all parts, split, or a pending sum. Pending sums pass through linear
// ops; where an op needs one whole it runs once, after the parts, as all ops of the update do.
//
// Example: loss = (model(x) * w).sum() / 64 is pending, and so are the gradients of the weights;
// all are accumulated for the update and the result, and their scale is right whatever the number
// of parts.
//
// Throws PlanError
//   [E330] naming op and source line where samples of one part need values of others (a softmax
//          over the batch, contrastive losses), or something that lives on has a dim of the batch;
//   [E331] for an op whose result depends on which samples the part has (arange over the batch);
//   [E332] where forward or backward needs what the update makes;
//   [E333] for a split dim of which the views in the step leave no part that can be cut so often.
MicrobatchStep cutOverTime(const ShardedGraph& graph, const MicrobatchOptions& options);

}  // namespace shardwright
