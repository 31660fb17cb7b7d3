// Layers: the forward operations of a step, in order, cut into runs that stages are made of.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shardwright {

// A tensor; `producer` is the index of an operation, or -1 for what is there before the step
// (parameters, the batch), which enters no layer.
struct ClusterValue {
  std::int32_t producer = -1;
  std::int64_t bytes = 0;
};

struct ClusterOp {
  std::int64_t flops = 0;
  std::vector<std::int32_t> operands;  // indices of values
  // Equal for operations that do the same to tensors of the same shapes: recognises repeats.
  std::uint64_t signature = 0;
};

struct ClusterOptions {
  // Layers to cut into; found when not given (see clusterLayers).
  std::optional<int> num_layers = {};
  // Most layers when they are found.
  int most_layers = 128;
  // A layer has at most (1 + flop_tolerance) times the average layer's FLOPs, or one heavy op.
  double flop_tolerance = 0.5;
  // Operations in front of which a layer begins whatever it costs: the user's marks. With marks and
  // no num_layers the marks alone cut, and FLOPs are not bounded.
  std::vector<std::int32_t> forced_begins = {};
};

struct LayerClustering {
  std::vector<std::int32_t> begins;          // first operation of each layer
  std::vector<std::int64_t> entering_bytes;  // of each layer: from operations before it
  std::vector<std::int64_t> flops;           // of each layer
  std::vector<std::int32_t> class_of_layer;  // layers of one class compute the same; by first use
};

// Cuts so that the most bytes entering any layer are fewest (Alpa, section 5.1: G(k, r) =
// min_i max(G(i - 1, r - 1), C(i, k)) subject to FLOPs(i..k) <= (1 + delta) FLOPs / L), then the
// sum of entering bytes, then the sum of squared FLOPs (more even layers). Exact in this order.
// Heavy operations have at least the average FLOPs. A layer with one of them may exceed the bound
// (the head of a language model), and a layer without any is only made where there is no other cut.
//
// Without num_layers a layer begins at every narrow place, whatever its FLOPs; where most_layers
// does not allow so many, at every second one, or third, and so on. The place between two heavy
// operations is as wide as the fewest bytes that cross anywhere in between, and narrow when neither
// the place before nor the one after is narrower. So residual blocks, and the attention and
// feed-forward halves of a transformer block, are layers, and so is every product of a plain chain.
//
// Throws ProblemError [E222] for a malformed list, or when no cut into num_layers meets the bound.
LayerClustering clusterLayers(const std::vector<ClusterOp>& ops,
                              const std::vector<ClusterValue>& values,
                              const ClusterOptions& options = {});

}  // namespace shardwright
