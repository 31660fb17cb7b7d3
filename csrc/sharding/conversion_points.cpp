#include "sharding/conversion_points.h"

#include <algorithm>
#include <utility>

namespace shardwright {
namespace {

// Results are read when the step is over.
Phase phaseOf(const Graph& graph, const ValueUse& use) {
  return use.isResult() ? Phase::kUpdate : graph.node(use.node).phase;
}

bool isInPlace(const ShardingRule& rule, int operand) {
  return std::ranges::find(rule.aliases, operand) != rule.aliases.end();
}

}  // namespace

std::vector<std::vector<ValueUses>> valueUses(const ShardedGraph& sharded) {
  const Graph& graph = sharded.graph();
  std::vector<std::vector<ValueUses>> uses;
  uses.reserve(graph.nodes().size());
  for (const Node& node : graph.nodes()) {
    uses.emplace_back(node.outputs.size());
  }
  const auto of = [&](ValueRef value) -> ValueUses& {
    const ValueRef root = sharded.root(value);
    return uses[root.node.index()][static_cast<std::size_t>(root.output)];
  };
  for (std::size_t index = 0; index < graph.nodes().size(); ++index) {
    const NodeId node(index);
    if (sharded.isView(node)) {
      continue;
    }
    const std::vector<ValueRef> operands = graph.node(node).operands();
    for (std::size_t operand = 0; operand < operands.size(); ++operand) {
      const int position = static_cast<int>(operand);
      ValueUses& value_uses = of(operands[operand]);
      (isInPlace(sharded.rule(node), position) ? value_uses.in_place : value_uses.converting)
          .push_back({node, position, -1});
    }
  }
  for (std::size_t result = 0; result < graph.outputs().size(); ++result) {
    const GraphOutput& output = graph.outputs()[result];
    const bool updates_in_place =
        output.updates && sharded.storage(output.value) == ValueRef{*output.updates, 0};
    ValueUses& value_uses = of(output.value);
    (updates_in_place ? value_uses.in_place : value_uses.converting)
        .push_back({NodeId(), 0, static_cast<int>(result)});
  }
  return uses;
}

std::vector<ConversionPoint> conversionPoints(const ShardedGraph& sharded) {
  const Graph& graph = sharded.graph();
  const std::vector<std::vector<ValueUses>> uses = valueUses(sharded);
  std::vector<ConversionPoint> points;
  for (std::size_t index = 0; index < uses.size(); ++index) {
    const Node& node = graph.nodes()[index];
    for (std::size_t output = 0; output < uses[index].size(); ++output) {
      const std::vector<ValueUse>& converting = uses[index][output].converting;
      if (converting.empty()) {
        continue;
      }
      Phase first_phase = Phase::kUpdate;
      for (const ValueUse& use : converting) {
        first_phase = std::min(first_phase, phaseOf(graph, use));
      }
      const bool crosses_phases =
          !node.input && !converting.front().isResult() && first_phase > node.phase;
      if (converting.size() < 2 && !crosses_phases) {
        continue;
      }
      ConversionPoint first{{NodeId(index), static_cast<int>(output)}, 0, first_phase, {}};
      ConversionPoint later = first;
      later.group = 1;
      later.phase = Phase::kUpdate;
      for (const ValueUse& use : converting) {
        const Phase phase = phaseOf(graph, use);
        if (phase == first_phase) {
          first.uses.push_back(use);
        } else {
          later.phase = std::min(later.phase, phase);
          later.uses.push_back(use);
        }
      }
      points.push_back(std::move(first));
      if (!later.uses.empty()) {
        points.push_back(std::move(later));
      }
    }
  }
  return points;
}

}  // namespace shardwright
