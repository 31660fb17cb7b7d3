// Graphs of layers and what they cost, for tests and for looking at.

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/core/bind.h"
#include "interop/layer_costs.h"
#include "interop/layer_graphs.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::object nameOf(const Graph& graph, const std::optional<NodeId>& node) {
  return node ? py::object(py::str(graph.node(*node).name)) : py::object(py::none());
}

std::vector<LayerTable> tablesFromPython(const LayerGraphs& graphs, const RuleRegistry& registry,
                                         const DeviceMesh& mesh, const Cluster& cluster,
                                         const std::vector<std::pair<double, double>>& prices,
                                         int num_microbatches, int max_specs, double max_work,
                                         bool shard_all_products) {
  std::vector<MemoryPrice> memory_prices;
  for (const auto& [fixed, saved] : prices) {
    memory_prices.push_back({fixed, saved});
  }
  const py::gil_scoped_release release;
  return LayerCosts(graphs, registry, {num_microbatches, max_specs, max_work, shard_all_products})
      .tables(mesh, cluster, memory_prices);
}

}  // namespace

void bindLayerCosts(py::module_& module) {
  py::class_<LayerClass>(module, "LayerClass")
      .def_property_readonly("graph", [](const LayerClass& layer) { return Graph(*layer.graph); })
      .def_readonly("first_layer", &LayerClass::first_layer)
      .def_property_readonly("received",
                             [](const LayerClass& layer) {
                               py::list received;
                               for (const ReceivedValue& value : layer.received) {
                                 received.append(py::make_tuple(layer.graph->node(value.input).name,
                                                                phaseName(value.phase)));
                               }
                               return received;
                             })
      .def_property_readonly("ports", [](const LayerClass& layer) {
        const Graph& graph = *layer.graph;
        return py::make_tuple(nameOf(graph, layer.main_in), nameOf(graph, layer.main_out),
                              nameOf(graph, layer.grad_in), nameOf(graph, layer.grad_out));
      });
  py::class_<LayerGraphs>(module, "LayerGraphs")
      .def(py::init(&makeLayerGraphs), py::arg("graph"), py::arg("layer_of_node"),
           py::arg("splits_backward") = false)
      .def_readonly("classes", &LayerGraphs::classes)
      .def_property_readonly("class_of_layer",
                             [](const LayerGraphs& graphs) {
                               std::vector<int> classes;
                               for (const Layer& layer : graphs.layers) {
                                 classes.push_back(layer.layer_class);
                               }
                               return classes;
                             })
      .def_property_readonly("crossings", [](const LayerGraphs& graphs) {
        py::list crossings;
        for (const CrossingValue& crossing : graphs.crossings) {
          crossings.append(py::make_tuple(graphs.whole->node(crossing.value.node).name,
                                          phaseName(crossing.phase), crossing.source,
                                          crossing.targets, crossing.bytes, crossing.is_main));
        }
        return crossings;
      });
  py::class_<LayerCost>(module, "LayerCost")
      .def_readonly("possible", &LayerCost::possible)
      .def_readonly("cost_units", &LayerCost::cost_units)
      .def_readonly("forward_us", &LayerCost::forward_us)
      .def_readonly("backward_us", &LayerCost::backward_us)
      .def_readonly("update_us", &LayerCost::update_us)
      .def_readonly("fixed_bytes", &LayerCost::fixed_bytes)
      .def_readonly("saved_bytes", &LayerCost::saved_bytes)
      .def_readonly("saved_entry_bytes", &LayerCost::saved_entry_bytes)
      .def_readonly("saved_exit_bytes", &LayerCost::saved_exit_bytes)
      .def_readonly("late_bytes", &LayerCost::late_bytes)
      .def_property_readonly("transient_bytes",
                             [](const LayerCost& cost) { return cost.transient_bytes[kInside]; })
      .def_readonly("update_bytes", &LayerCost::update_bytes);
  py::class_<LayerTable>(module, "LayerTable")
      .def_readonly("entry_specs", &LayerTable::entry_specs)
      .def_readonly("exit_specs", &LayerTable::exit_specs)
      .def_readonly("is_exact", &LayerTable::is_exact)
      .def_readonly("costs", &LayerTable::costs);
  module.def("layer_tables", &tablesFromPython, py::arg("graphs"), py::arg("registry"),
             py::arg("mesh"), py::arg("cluster"), py::kw_only(), py::arg("prices"),
             py::arg("num_microbatches"), py::arg("max_specs") = 8, py::arg("max_work") = 2.5e8,
             py::arg("shard_all_products") = false,
             "One table per class; prices are (fixed, saved) in microseconds per byte.");
}

}  // namespace shardwright
