#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/core/bind.h"
#include "sharding/placement.h"
#include "sharding/registry.h"
#include "sharding/rule_text.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace py = pybind11;

namespace shardwright {

namespace {

const char* editName(ArgEdit::Kind kind) {
  switch (kind) {
    case ArgEdit::Kind::kLocalShape:
      return "local_shape";
    case ArgEdit::Kind::kLocalDim:
      return "local_dim";
    case ArgEdit::Kind::kScale:
      return "scale";
    case ArgEdit::Kind::kGlobalAtoms:
      return "global_atoms";
    case ArgEdit::Kind::kLocalAtoms:
      return "local_atoms";
    case ArgEdit::Kind::kAtomStarts:
      return "atom_starts";
  }
  return "";
}

py::dict factorTable(const Factor& factor) {
  py::dict table;
  table["size"] = factor.size;
  table["blocked"] = factor.blocked;
  table["reduce"] = reduceOpName(factor.reduce);
  table["needs_offset"] = factor.needs_offset;
  table["offset_stride"] = factor.offset_stride;
  return table;
}

py::list mapTables(const std::vector<TensorMap>& maps) {
  py::list tables;
  for (const TensorMap& map : maps) {
    tables.append(map.dims);
  }
  return tables;
}

py::dict ruleTable(const ShardingRule& rule) {
  py::list factors;
  for (const Factor& factor : rule.factors) {
    factors.append(factorTable(factor));
  }
  py::list partials;
  for (const PartialRule& partial : rule.partials) {
    partials.append(
        py::make_tuple(partial.operands, partial.outputs, reduceOpName(partial.reduce)));
  }
  py::list edits;
  for (const ArgEdit& edit : rule.edits) {
    py::dict entry;
    entry["kind"] = editName(edit.kind);
    entry["arg"] = edit.arg;
    entry["element"] = edit.element;
    entry["output"] = edit.output;
    entry["operand"] = edit.operand;
    entry["dim"] = edit.dim;
    edits.append(entry);
  }
  py::dict table;
  table["text"] = ruleText(rule);
  table["factors"] = factors;
  table["operands"] = mapTables(rule.operands);
  table["outputs"] = mapTables(rule.outputs);
  table["partials"] = partials;
  table["edits"] = edits;
  table["offset_op"] = rule.offset_op;
  table["sharded_op"] = rule.sharded_op;
  table["is_view"] = rule.is_view;
  table["aliases"] = rule.aliases;
  table["in_place"] = rule.in_place;
  table["flops"] = rule.flops;
  table["bytes_moved"] = rule.bytes_moved;
  return table;
}

py::dict strategyTable(const Strategy& strategy) {
  py::dict table;
  table["axis_choice"] = strategy.axis_choice;
  table["axis_order"] = strategy.axis_order;
  table["operands"] = strategy.operands;
  table["outputs"] = strategy.outputs;
  table["compute_shards"] = strategy.compute_shards;
  return table;
}

ShardingRule notationRule(const std::string& notation, const std::vector<std::vector<int>>& linear,
                          const std::map<std::string, std::int64_t>& sizes, const Graph& graph,
                          const Node& node) {
  ShardingRule rule = ruleFromNotation(notation, graph, node, sizes);
  for (const std::vector<int>& operands : linear) {
    PartialRule partial;
    partial.operands.assign(rule.operands.size(), false);
    partial.outputs.assign(rule.outputs.size(), true);
    for (const int operand : operands) {
      if (operand < 0 || static_cast<std::size_t>(operand) >= rule.operands.size()) {
        throw Error(ErrorKind::kRule, "E202", "the sharding rule of " + node.op + " does not fit.",
                    {.values = {"linear names operand " + std::to_string(operand) + " of " +
                                std::to_string(rule.operands.size())},
                     .where = node.source,
                     .advice = "count tensor operands from 0 in linear"});
      }
      partial.operands[static_cast<std::size_t>(operand)] = true;
    }
    rule.partials.push_back(std::move(partial));
  }
  return rule;
}

NodeId nodeAt(const ShardedGraph& sharded, std::size_t index) {
  if (index >= sharded.graph().nodes().size()) {
    throw py::index_error("node " + std::to_string(index) + " of a graph with " +
                          std::to_string(sharded.graph().nodes().size()) + " nodes");
  }
  return NodeId(index);
}

}  // namespace

void bindSharding(py::module_& module) {
  py::class_<RuleRegistry>(module, "RuleRegistry",
                           "Sharding rules by op; starts with all built in.")
      .def(py::init(&builtinRules))
      .def(
          "add",
          [](RuleRegistry& registry, const std::string& op, const std::string& notation,
             const std::vector<std::vector<int>>& linear,
             const std::map<std::string, std::int64_t>& sizes) {
            registry.add(op, [=](const Graph& graph, const Node& node) {
              return notationRule(notation, linear, sizes, graph, node);
            });
          },
          py::arg("op"), py::arg("notation"), py::arg("linear"), py::arg("sizes"))
      .def("__contains__", &RuleRegistry::contains)
      .def("ops", &RuleRegistry::ops);
  py::class_<ShardedGraph>(module, "ShardedGraph", "A graph with rules refined to atoms.")
      .def(py::init<const Graph&, const RuleRegistry&>(), py::arg("graph"), py::arg("registry"),
           py::keep_alive<1, 2>(), py::call_guard<py::gil_scoped_release>())
      .def("rule", [](const ShardedGraph& sharded,
                      std::size_t node) { return ruleTable(sharded.rule(nodeAt(sharded, node))); })
      .def("rule_text",
           [](const ShardedGraph& sharded, std::size_t node) {
             return ruleText(sharded.rule(nodeAt(sharded, node)));
           })
      .def("atoms",
           [](const ShardedGraph& sharded, const ValueRef& value) { return sharded.atoms(value); })
      .def("root", &ShardedGraph::root)
      .def("storage", &ShardedGraph::storage)
      .def("is_view", [](const ShardedGraph& sharded,
                         std::size_t node) { return sharded.isView(nodeAt(sharded, node)); })
      .def("strategies",
           [](const ShardedGraph& sharded, std::size_t node, const std::vector<int>& mesh_shape) {
             py::list tables;
             for (const Strategy& strategy :
                  enumerateStrategies(sharded, nodeAt(sharded, node), mesh_shape)) {
               tables.append(strategyTable(strategy));
             }
             return tables;
           })
      .def("count_strategies", [](const ShardedGraph& sharded, const std::vector<int>& mesh_shape) {
        std::size_t count = 0;
        for (std::size_t node = 0; node < sharded.graph().nodes().size(); ++node) {
          count += enumerateStrategies(sharded, NodeId(node), mesh_shape).size();
        }
        return count;
      });
}

}  // namespace shardwright
