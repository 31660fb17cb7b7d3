// What every range of layers costs as a stage: tables of layers joined by min-plus products over
// the specs at the boundaries between them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "interop/layer_costs.h"
#include "mesh/submesh_shape.h"

namespace shardwright {

// One logical mesh on one shape of submesh, with the tables of its layers.
struct StageMesh {
  int submesh = 0;  // index into the shapes of the search
  std::vector<int> mesh_shape;
  bool recomputed = false;         // backward computes the layers' forward again
  std::vector<LayerTable> tables;  // by class of layer
};

// Most of any one of some layers: transient bytes, and these with what is late in it.
struct TransientBytes {
  std::int64_t alone = 0;
  std::int64_t with_late = 0;
};

// A range of layers on one mesh, per device; as LayerCost, added up.
struct StageCost {
  bool possible = false;
  double score = 0;  // of all prices together; what the product minimises
  double forward_us = 0;
  double backward_us = 0;
  double update_us = 0;
  std::int64_t fixed_bytes = 0;
  std::int64_t saved_bytes = 0;
  std::int64_t saved_entry_bytes = 0;
  std::int64_t saved_exit_bytes = 0;
  std::int64_t late_bytes = 0;
  std::int64_t entry_bytes = 0;  // of the first layer
  // Of the last layer.
  std::int64_t gradient_bytes = 0;
  std::int64_t late_gradient_bytes = 0;
  std::int64_t step_bytes = 0;
  TransientBytes transient;
  TransientBytes open_transient;  // were there another layer behind
  std::int64_t update_bytes = 0;
};

// Per device, with n microbatches in flight: held + n * per_microbatch.
struct StageBytes {
  std::int64_t held = 0;
  std::int64_t per_microbatch = 0;
};

// What a stage of its own takes. With `splits_backward` microbatches wait between the parts of its
// backward: unless it is the first of the step, which sends no gradients, so that all of its
// backward is late. What a stage receives it keeps until backward is done; gradients are there once
// where backward is not split.
StageBytes stageBytes(const StageCost& cost, bool splits_backward, bool is_first);

// Ranges of layers whose classes follow one another alike are one sequence, computed once.
class LayerSequences {
 public:
  // Class of every layer in order.
  explicit LayerSequences(const std::vector<int>& class_of_layer);

  int numLayers() const { return num_layers_; }
  int numSequences() const { return static_cast<int>(steps_.size()); }
  // Sequence of layers [begin, end), 0 <= begin < end <= numLayers().
  int of(int begin, int end) const;
  // The sequence without its last layer, -1 for none, and the class of that layer. Smaller than the
  // sequence itself.
  std::pair<int, int> step(int sequence) const {
    return steps_[static_cast<std::size_t>(sequence)];
  }
  // Whether all its ranges begin with the step.
  bool isFirst(int sequence) const { return is_first_[static_cast<std::size_t>(sequence)]; }
  int classOf(int layer) const { return class_of_layer_[static_cast<std::size_t>(layer)]; }
  int lengthOf(int sequence) const { return lengths_[static_cast<std::size_t>(sequence)]; }

 private:
  int num_layers_ = 0;
  std::vector<int> class_of_layer_;
  std::vector<std::pair<int, int>> steps_;
  std::vector<int> lengths_;
  std::vector<bool> is_first_;
  std::vector<std::vector<int>> sequences_;  // [begin][end - begin - 1]
};

// Costs of every sequence on one mesh at one price: [sequence][entry * exits + exit]. A join of
// neighbours takes, for each pair of outer specs, the spec between them of least score: exact for
// the sum of the layers' tables (min-plus product). Values that both neighbours save are counted
// once. Contract: neighbours' lists of specs agree (as in LayerTable).
std::vector<std::vector<StageCost>> sequenceCosts(const LayerSequences& sequences,
                                                  const std::vector<LayerTable>& tables,
                                                  std::size_t price);

}  // namespace shardwright
