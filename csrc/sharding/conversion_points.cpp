#include "sharding/conversion_points.h"

#include <algorithm>
#include <utility>

namespace shardwright {
namespace {

// A write-back belongs to the phase that makes the new value, a returned value to the last one.
Phase phaseOf(const Graph& graph, const ValueUse& use) {
  if (!use.isResult()) {
    const Node& node = graph.node(use.node);
    return accumulatesMicrobatches(node) ? graph.node(node.operands()[0].node).phase : node.phase;
  }
  const GraphOutput& result = graph.outputs()[static_cast<std::size_t>(use.result)];
  return result.updates ? graph.node(result.value.node).phase : Phase::kUpdate;
}

bool readsEarlier(const ValueUse& a, const ValueUse& b) {
  if (a.node.isValid() != b.node.isValid()) {
    return a.node.isValid();
  }
  return a.node != b.node ? a.node < b.node : a.result < b.result;
}

bool isInPlace(const ShardingRule& rule, int operand) {
  return rule.in_place && std::ranges::find(rule.aliases, operand) != rule.aliases.end();
}

}  // namespace

bool accumulatesMicrobatches(const Node& node) {
  return node.op == "shardwright.accumulate.default";
}

bool spansMicrobatches(const Node& node) {
  return accumulatesMicrobatches(node) || node.op == "shardwright.collect.default";
}

ValueRef bufferOwner(const ShardedGraph& graph, ValueRef value) {
  for (;;) {
    value = graph.root(value);
    const ShardingRule& rule = graph.rule(value.node);
    const auto output = static_cast<std::size_t>(value.output);
    if (!rule.in_place || output >= rule.aliases.size() || rule.aliases[output] < 0) {
      return value;
    }
    value =
        graph.graph().node(value.node).operands()[static_cast<std::size_t>(rule.aliases[output])];
  }
}

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
  std::vector<NodeId> last_reader(graph.nodes().size());  // of an input's buffer, by input
  for (std::size_t index = 0; index < uses.size(); ++index) {
    for (std::size_t output = 0; output < uses[index].size(); ++output) {
      // Through slices too: a window on the old value must be read before that is overwritten.
      const ValueRef owner = sharded.storage({NodeId(index), static_cast<int>(output)});
      for (const auto* list : {&uses[index][output].converting, &uses[index][output].in_place}) {
        if (!list->empty() && graph.node(owner.node).input) {
          NodeId& last = last_reader[owner.node.index()];
          last = std::max(last, list->back().node);
        }
      }
    }
  }
  for (std::size_t result = 0; result < graph.outputs().size(); ++result) {
    const GraphOutput& output = graph.outputs()[result];
    const bool updates_in_place =
        output.updates && bufferOwner(sharded, output.value) == ValueRef{*output.updates, 0};
    ValueUses& value_uses = of(output.value);
    const NodeId written_after =
        output.updates ? std::max(output.value.node, last_reader[output.updates->index()])
                       : NodeId();
    (updates_in_place ? value_uses.in_place : value_uses.converting)
        .push_back({written_after, 0, static_cast<int>(result)});
  }
  for (std::vector<ValueUses>& node_uses : uses) {
    for (ValueUses& value_uses : node_uses) {
      std::ranges::stable_sort(value_uses.converting, readsEarlier);
      std::ranges::stable_sort(value_uses.in_place, readsEarlier);
    }
  }
  return uses;
}

std::vector<ConversionPoint> conversionPoints(const ShardedGraph& sharded) {
  const Graph& graph = sharded.graph();
  const std::vector<std::vector<ValueUses>> uses = valueUses(sharded);
  // Phases come in runs (with gradient accumulation forward and backward alternate).
  std::vector<int> run(graph.nodes().size(), 0);
  for (std::size_t index = 1; index < run.size(); ++index) {
    run[index] = run[index - 1] + (graph.nodes()[index].phase != graph.nodes()[index - 1].phase);
  }
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
      const ValueUse& only = converting.front();
      const bool crosses_phases =
          !node.input && !only.isResult() && run[only.node.index()] != run[index];
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
      // With one use in the first group, converting for it alone costs the same as a point of its
      // own, and the later group may share the one that is kept.
      const bool later_may_differ =
          first.uses.size() >= 2 || (node.input && later.uses.size() >= 2);
      if (!later.uses.empty() && !later_may_differ) {
        first.uses = converting;
        later.uses.clear();
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
