#include "interop/layer_memory.h"

#include <algorithm>
#include <optional>

#include "sharding/conversion_points.h"

namespace shardwright {
namespace {

// First node of a phase that is no input; their number where there is none.
std::int64_t firstOf(const Graph& graph, Phase phase) {
  for (std::size_t index = 0; index < graph.nodes().size(); ++index) {
    if (graph.nodes()[index].phase >= phase && !graph.nodes()[index].input) {
      return static_cast<std::int64_t>(index);
    }
  }
  return graph.numNodes();
}

// When a received value is in memory: from its arrival to its last reader.
LiveInterval lifeOf(const Graph& graph, const ReceivedValue& received,
                    const std::vector<ValueUses>& uses, std::int64_t first_backward,
                    std::int64_t first_update) {
  LiveInterval interval{0, 0};
  for (const auto* list : {&uses[0].converting, &uses[0].in_place}) {
    for (const ValueUse& use : *list) {
      const std::int64_t time =
          use.node.isValid() ? static_cast<std::int64_t>(use.node.index()) : graph.numNodes() - 1;
      interval.end = std::max(interval.end, time + 1);
      if (received.phase == Phase::kUpdate && time < first_update) {
        return {0, graph.numNodes()};  // the value of a stored tensor, for the whole step
      }
    }
  }
  if (received.phase != Phase::kForward) {
    interval.begin = received.phase == Phase::kBackward ? first_backward : first_update;
  }
  return interval;
}

}  // namespace

LayerMemory::LayerMemory(const ShardedGraph& sharded, const LayerClass& layer, const Model& model)
    : num_times_(sharded.graph().numNodes()),
      first_backward_(firstOf(sharded.graph(), Phase::kBackward)),
      first_update_(firstOf(sharded.graph(), Phase::kUpdate)) {
  const Graph& graph = sharded.graph();
  const std::vector<std::vector<ValueUses>> uses = valueUses(sharded);
  std::vector<std::optional<LiveInterval>> received(graph.nodes().size());
  std::vector<bool> is_of_microbatch(graph.nodes().size(), false);
  for (const ReceivedValue& value : layer.received) {
    is_of_microbatch[value.input.index()] = value.phase != Phase::kUpdate;
    received[value.input.index()] =
        lifeOf(graph, value, uses[value.input.index()], first_backward_, first_update_);
  }
  std::optional<ValueRef> exit;
  if (layer.main_out) {
    exit = sharded.root(graph.node(*layer.main_out).operands()[0]);
  }
  const Problem& problem = model.problem();
  for (std::size_t n = 0; n < problem.numNodes(); ++n) {
    const ChoiceNode& choice = problem.nodes()[n];
    const ModelNode& node = model.nodes()[n];
    const bool is_op = node.kind == ModelNode::Kind::kOp;
    const bool has_one_output = is_op && graph.node(node.op).outputs.size() == 1;
    fixed_.emplace_back(choice.costs.size(), 0);
    saved_.emplace_back(choice.costs.size(), 0);
    if (is_op && graph.node(node.op).op == "shardwright.send.default") {
      continue;  // its result is empty
    }
    for (const MemoryPiece& memory : choice.memory) {
      Piece piece{n, Span::kPassing, memory.interval, &memory.bytes, false, false};
      if (is_op && received[node.op.index()]) {
        piece.interval = *received[node.op.index()];
      }
      piece.span = spanOf(piece.interval, is_op && is_of_microbatch[node.op.index()]);
      piece.is_entry = is_op && layer.main_in == node.op;
      if (exit) {
        piece.is_exit =
            is_op
                ? has_one_output && node.op == exit->node
                : node.kind == ModelNode::Kind::kConversion &&
                      model.conversions()[static_cast<std::size_t>(node.conversion)].value == *exit;
      }
      if (piece.span != Span::kPassing) {
        std::vector<std::int64_t>& sum = piece.span == Span::kFixed ? fixed_[n] : saved_[n];
        for (std::size_t s = 0; s < sum.size(); ++s) {
          sum[s] += memory.bytes[s];
        }
      }
      if (!piece.interval.empty()) {
        pieces_.push_back(piece);
      }
    }
  }
}

LayerMemory::Span LayerMemory::spanOf(const LiveInterval& interval, bool is_of_microbatch) const {
  if (interval.begin == 0 && interval.end >= first_update_ && !is_of_microbatch) {
    return Span::kFixed;
  }
  const bool waits = interval.begin < first_backward_ && interval.end > first_backward_;
  return waits ? Span::kSaved : Span::kPassing;
}

void LayerMemory::measure(std::span<const std::int32_t> choice, LayerCost& cost) const {
  std::vector<std::int64_t> change(static_cast<std::size_t>(num_times_) + 1, 0);
  cost.fixed_bytes = cost.saved_bytes = 0;
  cost.saved_entry_bytes = cost.saved_exit_bytes = 0;
  for (const Piece& piece : pieces_) {
    const std::int64_t bytes = (*piece.bytes)[static_cast<std::size_t>(choice[piece.node])];
    if (bytes == 0) {
      continue;
    }
    change[static_cast<std::size_t>(piece.interval.begin)] += bytes;
    change[static_cast<std::size_t>(piece.interval.end)] -= bytes;
    if (piece.span == Span::kFixed) {
      cost.fixed_bytes += bytes;
    } else if (piece.span == Span::kSaved) {
      cost.saved_bytes += bytes;
      if (piece.is_entry) {
        cost.saved_entry_bytes += bytes;
      }
      if (piece.is_exit) {
        cost.saved_exit_bytes = std::max(cost.saved_exit_bytes, bytes);
      }
    }
  }
  std::int64_t alive = 0;
  std::int64_t most = 0;
  std::int64_t most_in_update = 0;
  for (std::int64_t time = 0; time < num_times_; ++time) {
    alive += change[static_cast<std::size_t>(time)];
    std::int64_t& peak = time < first_update_ ? most : most_in_update;
    peak = std::max(peak, alive);
  }
  cost.transient_bytes = std::max<std::int64_t>(0, most - cost.fixed_bytes - cost.saved_bytes);
  cost.update_bytes = std::max<std::int64_t>(0, most_in_update - cost.fixed_bytes);
}

}  // namespace shardwright
