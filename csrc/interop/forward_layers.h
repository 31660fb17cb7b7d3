// Layers of a step's op table: its forward ops clustered (layer_clustering.h) by bytes and FLOPs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "sharding/registry.h"

namespace shardwright {

struct LayerOptions {
  std::optional<int> num_layers = {};  // found when not given
  int most_layers = 128;               // most when they are found
};

struct ForwardLayers {
  std::vector<NodeId> begins;                // of the layers 1, 2, ...
  std::vector<std::int64_t> flops;           // of each layer's forward ops
  std::vector<std::int64_t> entering_bytes;  // of each layer: what it reads of others in forward
  std::vector<std::int32_t> class_of_layer;  // layers of one class compute the same; by first use
  std::vector<std::int32_t> layer_of_node;   // of the whole step: assignLayers
};

// Clusters the forward ops that are not of every layer (nodesOfEveryLayer). Nodes that one recorded
// op became (equal Node::forward_index) stay together. Marks (Node::layer_marks) force a boundary;
// marks alone, without num_layers, are the cut. A layer has at most 1.5 times the average
// FLOPs; where no cut into num_layers allows that, the factor is doubled until one does.
//
// Two layers are of one class when their ops, arguments and tensors agree and are wired alike;
// the numbers of random streams do not count.
//
// Throws ProblemError [E222] when there are fewer forward ops than num_layers, or none.
ForwardLayers findLayers(const Graph& graph, const RuleRegistry& registry,
                         const LayerOptions& options = {});

}  // namespace shardwright
