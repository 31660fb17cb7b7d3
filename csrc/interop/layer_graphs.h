// A step cut into layers: a graph for each distinct one, and the values that go between them. The
// same cut as python/shardwright/pipeline/stage_graphs.py makes for stages, one layer per stage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

// Layer of nodes that belong to none: each layer that needs one has or computes it itself.
inline constexpr int kEveryLayer = -1;

// A value of another layer, as an input of kind kBatch.
struct ReceivedValue {
  NodeId input;
  // kForward, kBackward: comes once per microbatch, before that part; kUpdate: once per step,
  // before the step begins or in the update.
  Phase phase = Phase::kForward;
};

// Layers that are equal up to names: same ops, arguments, shapes, dtypes, phases, wiring and kinds
// of inputs, same main values. Their graph is written once.
//
// Nodes stand in this order: inputs (own ones first, then received ones, called "<name>_received"),
// forward, backward, update. Values that other layers read in forward or backward are marked by
// shardwright.send.default right after they are made ("<name>_sent"), and returned. Values that
// cross in the update (norms, tied weights and their gradients) are inputs of their readers, and
// nothing in their maker. Where backward is split, what no value for another layer follows from is
// late (Node::is_late) and stands after the rest of backward.
struct LayerClass {
  std::shared_ptr<const Graph> graph;
  int first_layer = 0;
  // Node of `graph`; nothing at the ends of the step, or where no value fits.
  std::optional<NodeId> main_in;   // input: the activation that enters from the layer before
  std::optional<NodeId> main_out;  // send: the activation that goes to the layer after
  std::optional<NodeId> grad_in;   // input: gradient of main_out
  std::optional<NodeId> grad_out;  // send: gradient of main_in
  std::vector<ReceivedValue> received;
};

struct Layer {
  int layer_class = 0;
  // By node of the class's graph: the node of the whole graph that it is or, of a send or received
  // value, the one whose value it passes.
  std::vector<NodeId> origin;
};

// A value that one layer makes and others read.
struct CrossingValue {
  ValueRef value;  // of LayerGraphs::whole
  // kForward, kBackward: once per microbatch; kUpdate: once per step, be it at its start (a tied
  // weight) or in the update.
  Phase phase = Phase::kForward;
  int source = 0;
  std::vector<int> targets;  // ascending
  std::int64_t bytes = 0;
  bool is_main = false;  // one of LayerBoundary's two (it may have other targets besides)
};

// The two values that a layer's costs know the specs of, in front of it.
struct LayerBoundary {
  // The largest forward value that the layer before makes and this one reads in forward or
  // backward; of several the last.
  std::optional<ValueRef> main;
  // The largest backward value that this layer makes, the layer before reads and has as many
  // elements as `main`; of several the last.
  std::optional<ValueRef> gradient;
};

struct LayerGraphs {
  // The graph that was cut: the given one, but where a sum over microbatches adds terms of several
  // layers (a tied weight's gradient) each term is summed over microbatches by itself.
  std::shared_ptr<const Graph> whole;
  std::vector<int> layer_of_node;  // of `whole`
  std::vector<LayerClass> classes;
  std::vector<Layer> layers;
  std::vector<LayerBoundary> boundaries;  // by layer; entry 0 is empty
  std::vector<CrossingValue> crossings;   // by source, then value
};

// Cuts `graph` into the layers 0 to max(layer_of_node). Linear in the size of the graph.
//
// Contract: one layer per node. In forward a layer reads values of earlier layers only, in backward
// besides of later ones what those make in forward or backward; the new value of an input is made
// in the input's layer or in no layer. Throws InternalError [E944] naming the value otherwise.
LayerGraphs makeLayerGraphs(const Graph& graph, const std::vector<int>& layer_of_node,
                            bool splits_backward = false);

}  // namespace shardwright
