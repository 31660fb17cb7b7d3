#include "plan/parameter_gradients.h"

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace shardwright {
namespace {

class Search {
 public:
  Search(const Graph& graph, std::int64_t num_elements)
      : graph_(graph), num_elements_(num_elements) {}

  void from(ValueRef value) {
    std::vector<ValueRef> pending = {value};
    while (!pending.empty()) {
      const ValueRef at = pending.back();
      pending.pop_back();
      const Node& node = graph_.node(at.node);
      if (node.input || graph_.meta(at).numElements() != num_elements_ ||
          !seen_.insert(at).second) {
        continue;
      }
      if (node.phase != Phase::kUpdate) {
        found_.insert(at);
        continue;
      }
      for (const ValueRef operand : node.operands()) {
        pending.push_back(operand);
      }
    }
  }

  std::optional<ValueRef> only() const {
    return found_.size() == 1 ? std::optional<ValueRef>(*found_.begin()) : std::nullopt;
  }

 private:
  const Graph& graph_;
  std::int64_t num_elements_;
  std::set<ValueRef> seen_;
  std::set<ValueRef> found_;
};

// Parameter whose storage or state `input` is, else empty.
std::string ownerOf(const Node& input) {
  switch (input.input->kind) {
    case InputKind::kParameter:
      return input.input->name;
    case InputKind::kOptimizerState:
      return input.input->parameter;
    default:
      return "";
  }
}

}  // namespace

std::vector<ParameterGradient> parameterGradients(const Graph& graph) {
  std::map<std::string, std::vector<ValueRef>> new_values;
  for (const GraphOutput& output : graph.outputs()) {
    if (output.updates) {
      new_values[ownerOf(graph.node(*output.updates))].push_back(output.value);
    }
  }
  std::vector<ParameterGradient> gradients;
  for (std::size_t index = 0; index < graph.nodes().size(); ++index) {
    const Node& node = graph.nodes()[index];
    if (!node.input || node.input->kind != InputKind::kParameter || node.outputs.empty()) {
      continue;
    }
    Search search(graph, node.outputs[0].numElements());
    for (const ValueRef value : new_values[node.input->name]) {
      search.from(value);
    }
    if (const std::optional<ValueRef> value = search.only()) {
      gradients.push_back({NodeId(index), *value});
    }
  }
  return gradients;
}

}  // namespace shardwright
