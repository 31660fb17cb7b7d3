// Layer clustering on plain lists.

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "interop/forward_layers.h"
#include "interop/layer_assignment.h"
#include "interop/layer_clustering.h"

namespace py = pybind11;

namespace shardwright {

namespace {

LayerClustering clusterFromPython(const std::vector<std::int64_t>& flops,
                                  const std::vector<std::vector<std::int32_t>>& operands,
                                  const std::vector<std::uint64_t>& signatures,
                                  const std::vector<std::pair<std::int32_t, std::int64_t>>& values,
                                  std::optional<int> num_layers, int most_layers,
                                  double flop_tolerance, std::vector<std::int32_t> forced_begins) {
  if (operands.size() != flops.size() || signatures.size() != flops.size()) {
    throw Error(
        ErrorKind::kProblem, "E222", "operations cannot be cut into layers.",
        {.values = {std::to_string(flops.size()) + " FLOPs, " + std::to_string(operands.size()) +
                    " lists of operands, " + std::to_string(signatures.size()) + " signatures"},
         .advice = "give one per operation"});
  }
  std::vector<ClusterOp> ops;
  for (std::size_t k = 0; k < flops.size(); ++k) {
    ops.push_back({flops[k], operands[k], signatures[k]});
  }
  std::vector<ClusterValue> tensors;
  for (const auto& [producer, bytes] : values) tensors.push_back({producer, bytes});
  const py::gil_scoped_release release;
  return clusterLayers(ops, tensors,
                       {num_layers, most_layers, flop_tolerance, std::move(forced_begins)});
}

std::vector<std::int32_t> assignFromPython(const Graph& graph,
                                           const std::vector<std::string>& starts) {
  const py::gil_scoped_release release;
  return assignLayers(graph, layerBegins(graph, starts));
}

ForwardLayers findFromPython(const Graph& graph, const RuleRegistry& registry,
                             std::optional<int> num_layers, int most_layers) {
  const py::gil_scoped_release release;
  return findLayers(graph, registry, {.num_layers = num_layers, .most_layers = most_layers});
}

std::vector<std::size_t> beginsToPython(const ForwardLayers& layers) {
  std::vector<std::size_t> begins;
  for (const NodeId begin : layers.begins) begins.push_back(begin.index());
  return begins;
}

}  // namespace

void bindLayers(py::module_& module) {
  py::class_<LayerClustering>(module, "LayerClustering")
      .def_readonly("begins", &LayerClustering::begins)
      .def_readonly("entering_bytes", &LayerClustering::entering_bytes)
      .def_readonly("flops", &LayerClustering::flops)
      .def_readonly("class_of_layer", &LayerClustering::class_of_layer);
  module.def("cluster_layers", &clusterFromPython, py::kw_only(), py::arg("flops"),
             py::arg("operands"), py::arg("signatures"), py::arg("values"),
             py::arg("num_layers") = py::none(), py::arg("most_layers") = 128,
             py::arg("flop_tolerance") = 0.5,
             py::arg("forced_begins") = std::vector<std::int32_t>(),
             "Cuts operations in order into layers; values are (producer or -1, bytes).");
  py::class_<ForwardLayers>(module, "ForwardLayers", "Layers of the forward ops of a step.")
      .def_property_readonly("begins", &beginsToPython)
      .def_readonly("flops", &ForwardLayers::flops)
      .def_readonly("entering_bytes", &ForwardLayers::entering_bytes)
      .def_readonly("class_of_layer", &ForwardLayers::class_of_layer)
      .def_readonly("layer_of_node", &ForwardLayers::layer_of_node);
  module.def("find_layers", &findFromPython, py::arg("graph"), py::arg("registry"),
             py::arg("num_layers") = py::none(), py::arg("most_layers") = 128,
             "Cuts the forward ops of a step into layers.");
  module.def("assign_layers", &assignFromPython, py::arg("graph"), py::arg("starts"),
             "Layer of every node, given the ops or modules that begin the layers 1, 2, ...");
}

}  // namespace shardwright
