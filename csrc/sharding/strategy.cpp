#include "sharding/strategy.h"

#include <algorithm>
#include <numeric>

namespace shardwright {
namespace {

class Enumerator {
 public:
  Enumerator(const ShardedGraph& graph, NodeId node, const std::vector<int>& mesh_shape)
      : graph_(graph),
        node_(node),
        rule_(graph.rule(node)),
        operands_(graph.graph().node(node).operands()),
        mesh_shape_(mesh_shape),
        shards_(rule_.factors.size(), 1),
        choice_(mesh_shape.size(), Strategy::kReplicated) {}

  std::vector<Strategy> run() {
    choose(0);
    return std::move(strategies_);
  }

 private:
  void choose(std::size_t axis) {
    if (axis == mesh_shape_.size()) {
      if (isConsistent()) {
        chooseOrder(0, std::vector<int>(mesh_shape_.size(), 0));
      }
      return;
    }
    choice_[axis] = Strategy::kReplicated;
    choose(axis + 1);
    const std::int64_t ranks = mesh_shape_[axis];
    if (ranks == 1) {
      return;
    }
    for (std::size_t f = 0; f < rule_.factors.size(); ++f) {
      const Factor& factor = rule_.factors[f];
      if (factor.blocked || factor.size % (shards_[f] * ranks) != 0) {
        continue;
      }
      choice_[axis] = static_cast<int>(f);
      shards_[f] *= ranks;
      choose(axis + 1);
      shards_[f] /= ranks;
    }
    for (std::size_t p = 0; p < rule_.partials.size(); ++p) {
      choice_[axis] = Strategy::kFirstPartial - static_cast<int>(p);
      choose(axis + 1);
    }
    choice_[axis] = Strategy::kReplicated;
  }

  // One offset per op, and one kind of pending reduction per output.
  bool isConsistent() const {
    int with_offset = Strategy::kReplicated;
    for (const int factor : choice_) {
      if (factor < 0 || !rule_.factors[static_cast<std::size_t>(factor)].needs_offset) {
        continue;
      }
      if (with_offset >= 0 && with_offset != factor) {
        return false;
      }
      with_offset = factor;
    }
    for (std::size_t o = 0; o < rule_.outputs.size(); ++o) {
      bool seen[3] = {false, false, false};
      for (std::size_t axis = 0; axis < choice_.size(); ++axis) {
        const Placement placement = outputPlacement(static_cast<int>(o), axis, 0);
        if (placement.kind == Placement::Kind::kPartial) {
          seen[static_cast<std::size_t>(placement.reduce)] = true;
        }
      }
      if (std::count(std::begin(seen), std::end(seen), true) > 1) {
        return false;
      }
    }
    return true;
  }

  // Axes that share a factor come in every order; `order` is filled axis by axis.
  void chooseOrder(std::size_t axis, std::vector<int> order) {
    while (axis < choice_.size() && !isFirstOfSeveral(axis)) {
      ++axis;
    }
    if (axis == choice_.size()) {
      emit(order);
      return;
    }
    std::vector<std::size_t> sharing;
    for (std::size_t other = axis; other < choice_.size(); ++other) {
      if (choice_[other] == choice_[axis]) {
        sharing.push_back(other);
      }
    }
    std::vector<int> positions(sharing.size());
    std::iota(positions.begin(), positions.end(), 0);
    do {
      for (std::size_t i = 0; i < sharing.size(); ++i) {
        order[sharing[i]] = positions[i];
      }
      chooseOrder(axis + 1, order);
    } while (std::next_permutation(positions.begin(), positions.end()));
  }

  bool isFirstOfSeveral(std::size_t axis) const {
    const int factor = choice_[axis];
    if (factor < 0) {
      return false;
    }
    const auto begin = choice_.begin();
    const auto here = begin + static_cast<std::ptrdiff_t>(axis);
    return std::find(begin, here, factor) == here && std::count(here, choice_.end(), factor) > 1;
  }

  void emit(const std::vector<int>& order) {
    Strategy strategy;
    strategy.axis_choice = choice_;
    strategy.axis_order = order;
    for (std::size_t axis = 0; axis < choice_.size(); ++axis) {
      if (choice_[axis] >= 0) {
        strategy.compute_shards *= mesh_shape_[axis];
      }
    }
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      ShardingSpec& spec = strategy.operands.emplace_back();
      for (std::size_t axis = 0; axis < choice_.size(); ++axis) {
        spec.push_back(operandPlacement(i, axis, order[axis]));
      }
    }
    for (std::size_t o = 0; o < rule_.outputs.size(); ++o) {
      ShardingSpec& spec = strategy.outputs.emplace_back();
      for (std::size_t axis = 0; axis < choice_.size(); ++axis) {
        spec.push_back(outputPlacement(static_cast<int>(o), axis, order[axis]));
      }
    }
    strategies_.push_back(std::move(strategy));
  }

  Placement operandPlacement(std::size_t operand, std::size_t axis, int order) const {
    const int choice = choice_[axis];
    if (choice >= 0) {
      const int atom = atomOf(choice, rule_.operands[operand], graph_.atoms(operands_[operand]));
      return atom < 0 ? Placement{} : shard(atom, order);
    }
    if (choice <= Strategy::kFirstPartial && partialRule(choice).operands[operand]) {
      return pending(partialRule(choice).reduce);
    }
    return {};
  }

  Placement outputPlacement(int output, std::size_t axis, int order) const {
    const int choice = choice_[axis];
    const auto index = static_cast<std::size_t>(output);
    if (choice >= 0) {
      const TensorMap& map = rule_.outputs[index];
      const int atom = atomOf(choice, map, graph_.atoms({node_, output}));
      if (atom >= 0) {
        return shard(atom, order);
      }
      const bool is_unaffected =
          std::find(map.unaffected.begin(), map.unaffected.end(), choice) != map.unaffected.end();
      if (!map.missing_is_partial || is_unaffected) {
        return {};
      }
      return pending(rule_.factors[static_cast<std::size_t>(choice)].reduce);
    }
    if (choice <= Strategy::kFirstPartial && partialRule(choice).outputs[index]) {
      return pending(partialRule(choice).reduce);
    }
    return {};
  }

  static int atomOf(int factor, const TensorMap& map, const TensorAtoms& atoms) {
    for (std::size_t d = 0; d < map.dims.size(); ++d) {
      for (std::size_t k = 0; k < map.dims[d].size(); ++k) {
        if (map.dims[d][k] == factor) {
          return atoms.dims[d][k];
        }
      }
    }
    return -1;
  }

  const PartialRule& partialRule(int choice) const {
    return rule_.partials[static_cast<std::size_t>(Strategy::kFirstPartial - choice)];
  }

  static Placement shard(int atom, int order) {
    Placement placement;
    placement.kind = Placement::Kind::kShard;
    placement.atom = static_cast<std::int16_t>(atom);
    placement.order = static_cast<std::int8_t>(order);
    return placement;
  }

  static Placement pending(ReduceOp reduce) {
    Placement placement;
    placement.kind = Placement::Kind::kPartial;
    placement.reduce = reduce;
    return placement;
  }

  const ShardedGraph& graph_;
  NodeId node_;
  const ShardingRule& rule_;
  std::vector<ValueRef> operands_;
  const std::vector<int>& mesh_shape_;
  std::vector<std::int64_t> shards_;  // of each factor under the axes chosen so far
  std::vector<int> choice_;
  std::vector<Strategy> strategies_;
};

}  // namespace

std::vector<Strategy> enumerateStrategies(const ShardedGraph& graph, NodeId node,
                                          const std::vector<int>& mesh_shape) {
  return Enumerator(graph, node, mesh_shape).run();
}

}  // namespace shardwright
