#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "graph/graph.h"

namespace py = pybind11;

namespace shardwright {

namespace {

ArgList toArgs(const py::sequence& values);

Arg toArg(const py::handle& value) {
  if (value.is_none()) {
    return {};
  }
  if (py::isinstance<py::bool_>(value)) {
    return {value.cast<bool>()};
  }
  if (py::isinstance<py::int_>(value)) {
    return {value.cast<std::int64_t>()};
  }
  if (py::isinstance<py::float_>(value)) {
    return {value.cast<double>()};
  }
  if (py::isinstance<py::str>(value)) {
    return {value.cast<std::string>()};
  }
  if (py::isinstance<ValueRef>(value)) {
    return {value.cast<ValueRef>()};
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    return {toArgs(py::reinterpret_borrow<py::sequence>(value))};
  }
  throw py::type_error("argument of type " + py::str(py::type::of(value)).cast<std::string>() +
                       " has no place in a graph table");
}

ArgList toArgs(const py::sequence& values) {
  ArgList args;
  args.reserve(values.size());
  for (const py::handle& value : values) {
    args.push_back(toArg(value));
  }
  return args;
}

Phase parsePhase(const std::string& name) {
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
    if (name == phaseName(phase)) {
      return phase;
    }
  }
  throw py::value_error("unknown phase " + name);
}

InputKind parseInputKind(const std::string& name) {
  for (const InputKind kind :
       {InputKind::kParameter, InputKind::kBuffer, InputKind::kOptimizerState, InputKind::kBatch,
        InputKind::kHyper, InputKind::kRng, InputKind::kConstant}) {
    if (name == inputKindName(kind)) {
      return kind;
    }
  }
  throw py::value_error("unknown kind of input " + name);
}

InputLabel toLabel(const py::dict& label) {
  return {.kind = parseInputKind(label["kind"].cast<std::string>()),
          .name = label["name"].cast<std::string>(),
          .parameter = label["parameter"].cast<std::string>(),
          .key = label["key"].cast<std::string>(),
          .per_microbatch = label["per_microbatch"].cast<bool>()};
}

Node toNode(const py::dict& table) {
  Node node;
  node.name = table["name"].cast<std::string>();
  node.op = table["op"].cast<std::string>();
  node.args = toArgs(table["args"].cast<py::sequence>());
  for (const auto& [key, value] : table["kwargs"].cast<py::dict>()) {
    node.kwargs.emplace_back(key.cast<std::string>(), toArg(value));
  }
  for (const py::handle& output : table["outputs"].cast<py::sequence>()) {
    const auto [shape, dtype] = output.cast<std::pair<std::vector<std::int64_t>, std::string>>();
    node.outputs.push_back({.shape = shape, .dtype = parseDType(dtype)});
  }
  node.phase = parsePhase(table["phase"].cast<std::string>());
  node.module_path = table["module_path"].cast<std::string>();
  node.source = table["source"].cast<std::string>();
  if (!table["forward_index"].is_none()) {
    node.forward_index = table["forward_index"].cast<std::int64_t>();
  }
  node.layer_marks = table["layer_marks"].cast<int>();
  node.is_late = table["is_late"].cast<bool>();
  if (!table["input"].is_none()) {
    node.input = toLabel(table["input"].cast<py::dict>());
  }
  return node;
}

// The outputs are read when all nodes are: who makes the nodes one by one knows them only then.
Graph toGraph(const py::iterable& nodes, const py::sequence& outputs) {
  std::vector<Node> table;
  for (const py::handle& node : nodes) {
    table.push_back(toNode(node.cast<py::dict>()));
  }
  std::vector<GraphOutput> results;
  for (const py::handle& output : outputs) {
    const auto [value, updates] = output.cast<std::pair<ValueRef, std::optional<std::size_t>>>();
    results.push_back(
        {.value = value, .updates = updates ? std::optional(NodeId(*updates)) : std::nullopt});
  }
  return Graph(std::move(table), std::move(results));
}

const Node& nodeAt(const Graph& graph, std::size_t index) {
  if (index >= graph.nodes().size()) {
    throw py::index_error("node " + std::to_string(index) + " of a graph with " +
                          std::to_string(graph.nodes().size()) + " nodes");
  }
  return graph.node(NodeId(index));
}

py::object fromArg(const Arg& arg) {
  if (const ArgList* list = arg.asList()) {
    py::list values;
    for (const Arg& element : *list) {
      values.append(fromArg(element));
    }
    return values;
  }
  return std::visit(
      [](const auto& value) -> py::object {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::monostate> || std::is_same_v<Value, ArgList>) {
          return py::none();
        } else {
          return py::cast(value);
        }
      },
      arg.value);
}

py::dict fromNode(const Node& node) {
  py::list args;
  for (const Arg& arg : node.args) {
    args.append(fromArg(arg));
  }
  py::dict kwargs;
  for (const auto& [key, value] : node.kwargs) {
    kwargs[py::str(key)] = fromArg(value);
  }
  py::list outputs;
  for (const TensorMeta& meta : node.outputs) {
    outputs.append(py::make_tuple(meta.shape, dtypeName(meta.dtype)));
  }
  py::dict table;
  table["name"] = node.name;
  table["op"] = node.op;
  table["args"] = args;
  table["kwargs"] = kwargs;
  table["outputs"] = outputs;
  table["phase"] = phaseName(node.phase);
  table["module_path"] = node.module_path;
  table["source"] = node.source;
  table["forward_index"] =
      node.forward_index < 0 ? py::object(py::none()) : py::cast(node.forward_index);
  table["layer_marks"] = node.layer_marks;
  table["is_late"] = node.is_late;
  table["input"] = py::none();
  if (node.input) {
    py::dict label;
    label["kind"] = inputKindName(node.input->kind);
    label["name"] = node.input->name;
    label["parameter"] = node.input->parameter;
    label["key"] = node.input->key;
    label["per_microbatch"] = node.input->per_microbatch;
    table["input"] = label;
  }
  return table;
}

}  // namespace

void bindGraph(py::module_& module) {
  py::class_<ValueRef>(module, "ValueRef", "One tensor of a graph: output `output` of a node.")
      .def(py::init([](std::size_t node, int output) {
             return ValueRef{NodeId(node), output};
           }),
           py::arg("node"), py::arg("output") = 0)
      .def_property_readonly("node", [](const ValueRef& value) { return value.node.index(); })
      .def_readonly("output", &ValueRef::output)
      .def("__eq__", [](const ValueRef& a, const ValueRef& b) { return a == b; })
      .def("__hash__",
           [](const ValueRef& value) {
             return value.node.index() * 64 + static_cast<std::size_t>(value.output);
           })
      .def("__repr__", [](const ValueRef& value) {
        return "ValueRef(" + std::to_string(value.node.index()) + ", " +
               std::to_string(value.output) + ")";
      });
  py::class_<Graph>(module, "Graph", "The op table of a step; see shardwright.graph_table.")
      .def(py::init(&toGraph), py::arg("nodes"), py::arg("outputs"))
      .def("__len__", &Graph::numNodes)
      .def("node",
           [](const Graph& graph, std::size_t index) { return fromNode(nodeAt(graph, index)); })
      .def("operands",
           [](const Graph& graph, std::size_t index) { return nodeAt(graph, index).operands(); });
}

}  // namespace shardwright
