// Steps cut over time: what each node does on one microbatch.

#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <vector>

#include "bindings/core/bind.h"
#include "plan/microbatches.h"

namespace py = pybind11;

namespace shardwright {

namespace {

py::list argsToPython(const LocalCall& call) {
  py::list args;
  for (const LocalArg& arg : call.args) {
    args.append(localArgToPython(arg));
  }
  return args;
}

py::dict kwargsToPython(const LocalCall& call) {
  py::dict kwargs;
  for (const auto& [name, arg] : call.kwargs) {
    kwargs[py::str(name)] = localArgToPython(arg);
  }
  return kwargs;
}

std::vector<const char*> stateNames(const MicrobatchNode& node) {
  std::vector<const char*> names;
  for (const OverTime state : node.outputs) {
    names.push_back(overTimeName(state));
  }
  return names;
}

MicrobatchStep cutFromPython(const ShardedGraph& graph, int num_microbatches,
                             const std::vector<std::size_t>& split_inputs,
                             const std::map<std::size_t, std::int64_t>& statistics) {
  MicrobatchOptions options;
  options.num_microbatches = num_microbatches;
  for (const std::size_t input : split_inputs) {
    options.split_inputs.emplace_back(input);
  }
  for (const auto& [node, count] : statistics) {
    options.statistics.emplace(NodeId(node), count);
  }
  const py::gil_scoped_release release;
  return cutOverTime(graph, options);
}

}  // namespace

void bindMicrobatches(py::module_& module) {
  py::class_<MicrobatchNode>(module, "MicrobatchNode", "One node on one microbatch.")
      .def_readonly("once", &MicrobatchNode::once)
      .def_property_readonly("args", [](const MicrobatchNode& n) { return argsToPython(n.call); })
      .def_property_readonly("kwargs",
                             [](const MicrobatchNode& n) { return kwargsToPython(n.call); })
      .def_readonly("output_shapes", &MicrobatchNode::output_shapes)
      .def_property_readonly("over_time", &stateNames);
  py::class_<MicrobatchStep>(module, "MicrobatchStep", "A step cut over time.")
      .def_readonly("nodes", &MicrobatchStep::nodes)
      .def_readonly("accumulated", &MicrobatchStep::accumulated)
      .def_readonly("joined_dims", &MicrobatchStep::joined_dims)
      .def_readonly("whole", &MicrobatchStep::whole);
  module.def("cut_over_time", &cutFromPython, py::arg("graph"), py::arg("num_microbatches"),
             py::arg("split_inputs"), py::arg("statistics"),
             "What each node does on one of several microbatches, and what is added up over them. "
             "Raises PlanError E330 to E333.");
}

}  // namespace shardwright
