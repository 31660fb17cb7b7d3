// Which layer every node of a step belongs to, given where the layers of forward begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

// Layer of what every layer has or computes itself.
inline constexpr std::int32_t kEveryLayer = -1;

// By node: whether it is in kEveryLayer. So are the batch, hyper-parameters, random seeds,
// constants, parameters and buffers that are never updated, and every op that reads nothing else;
// but an op that reads functions of the batch and functions of stored tensors is a part of the
// model.
std::vector<bool> nodesOfEveryLayer(const Graph& graph);

// First nodes of the layers 1, 2, ...: each start is the name of a forward op, or the name of a
// module, for its first forward op that is not of every layer. The names of ops come first.
//
// Throws ConfigError [E527] for a start that is neither, or that does not come after the one
// before.
std::vector<NodeId> layerBegins(const Graph& graph, const std::vector<std::string>& starts);

// Layer of every node, inputs included.
//
//   forward    as many layers as begin at or before it
//   backward   that of the forward op it differentiates or computes again (Node::forward_index), or
//              that of the last forward value it reads if later; sums of gradients, of which
//              nothing is known, where the least of their terms is. Never later than the gradients
//              it reads
//   inputs     parameters and buffers with their first reader (a tied weight: the first layer that
//              reads it in forward); optimizer state with its parameter
//   update     the new value of an input with the input; else where most of the bytes that it reads
//              are, of equals the first
//
// Example: begins of {second layer's norm}, a tied embedding: the embedding is of layer 0, the
// head's product and its gradient of layer 1, the sum of both gradients of layer 0.
//
// Contract: begins are forward nodes in ascending order. Linear in the size of the graph but for
// one sort of forward ops. Throws PlanError [E334] when forward reads what backward makes.
std::vector<std::int32_t> assignLayers(const Graph& graph, const std::vector<NodeId>& begins);

}  // namespace shardwright
