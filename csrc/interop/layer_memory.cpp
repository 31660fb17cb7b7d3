#include "interop/layer_memory.h"

#include <algorithm>
#include <array>
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

// First node of backward's late part; 0 where there is none.
std::int64_t firstLate(const Graph& graph) {
  const auto found = std::ranges::find_if(graph.nodes(), &Node::is_late);
  return found == graph.nodes().end() ? 0 : found - graph.nodes().begin();
}

// Where the parts of a layer begin.
struct LayerParts {
  std::int64_t backward = 0;
  std::int64_t late = 0;  // of backward; 0 without any
  std::int64_t update = 0;

  explicit LayerParts(const Graph& graph)
      : backward(firstOf(graph, Phase::kBackward)),
        late(firstLate(graph)),
        update(firstOf(graph, Phase::kUpdate)) {}

  // `is_of_microbatch`: of a value received once per microbatch.
  MemorySpan spanOf(const LiveInterval& interval, bool is_of_microbatch) const {
    if (interval.begin == 0 && interval.end >= update && !is_of_microbatch) {
      return MemorySpan::kFixed;
    }
    if (interval.begin < backward && interval.end > backward) return MemorySpan::kSaved;
    // What is received for backward is there before the late part, whatever stands first.
    const bool is_there = interval.begin < late + (is_of_microbatch ? 1 : 0);
    return is_there && interval.end > late && late > 0 ? MemorySpan::kLate : MemorySpan::kPassing;
  }
};

// When a received value is in memory: from its arrival to its last reader.
LiveInterval lifeOf(const Graph& graph, const ReceivedValue& received,
                    const std::vector<ValueUses>& uses, const LayerParts& parts) {
  LiveInterval interval{0, 0};
  for (const auto* list : {&uses[0].converting, &uses[0].in_place}) {
    for (const ValueUse& use : *list) {
      const std::int64_t time =
          use.node.isValid() ? static_cast<std::int64_t>(use.node.index()) : graph.numNodes() - 1;
      interval.end = std::max(interval.end, time + 1);
      if (received.phase == Phase::kUpdate && time < parts.update) {
        return {0, graph.numNodes()};  // the value of a stored tensor, for the whole step
      }
    }
  }
  if (received.phase != Phase::kForward) {
    interval.begin = received.phase == Phase::kBackward ? parts.backward : parts.update;
  }
  return interval;
}

}  // namespace

std::vector<bool> keptReceived(const ShardedGraph& sharded, const LayerClass& layer) {
  const Graph& graph = sharded.graph();
  const LayerParts parts(graph);
  const std::vector<std::vector<ValueUses>> uses = valueUses(sharded);
  std::vector<bool> kept;
  for (const ReceivedValue& value : layer.received) {
    const LiveInterval life = lifeOf(graph, value, uses[value.input.index()], parts);
    kept.push_back(parts.spanOf(life, value.phase != Phase::kUpdate) != MemorySpan::kPassing);
  }
  return kept;
}

LayerMemory::LayerMemory(const ShardedGraph& sharded, const LayerClass& layer, const Model& model)
    : num_times_(sharded.graph().numNodes()) {
  const Graph& graph = sharded.graph();
  const LayerParts parts(graph);
  first_update_ = parts.update;
  const std::vector<std::vector<ValueUses>> uses = valueUses(sharded);
  std::vector<std::optional<LiveInterval>> received(graph.nodes().size());
  std::vector<std::optional<Phase>> phase_of(graph.nodes().size());
  for (const ReceivedValue& value : layer.received) {
    phase_of[value.input.index()] = value.phase;
    received[value.input.index()] = lifeOf(graph, value, uses[value.input.index()], parts);
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
      Piece piece{n,     MemorySpan::kPassing, memory.interval, &memory.bytes, false,
                  false, std::nullopt};
      if (is_op && received[node.op.index()]) {
        piece.interval = *received[node.op.index()];
      }
      if (is_op) piece.received = phase_of[node.op.index()];
      piece.span =
          parts.spanOf(piece.interval, piece.received && *piece.received != Phase::kUpdate);
      piece.is_entry = is_op && layer.main_in == node.op;
      if (exit) {
        piece.is_exit =
            is_op
                ? has_one_output && node.op == exit->node
                : node.kind == ModelNode::Kind::kConversion &&
                      model.conversions()[static_cast<std::size_t>(node.conversion)].value == *exit;
      }
      if (piece.is_exit && piece.span == MemorySpan::kSaved && parts.late > 0) {
        // The layer behind may read it in its late part, after all that stands here before that.
        piece.interval.end = std::max(piece.interval.end, parts.update);
      }
      if (piece.span != MemorySpan::kPassing) {
        std::vector<std::int64_t>& sum = piece.span == MemorySpan::kFixed ? fixed_[n] : saved_[n];
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

void LayerMemory::addReceived(const Piece& piece, std::int64_t bytes, LayerCost& cost) {
  if (piece.received == Phase::kForward && piece.span != MemorySpan::kSaved) {
    cost.entry_bytes += bytes;
  } else if (piece.received == Phase::kBackward) {
    cost.gradient_bytes += bytes;
    if (piece.span == MemorySpan::kLate) cost.late_gradient_bytes += bytes;
  } else if (piece.received == Phase::kUpdate && piece.span == MemorySpan::kPassing) {
    cost.step_bytes += bytes;
  }
}

void LayerMemory::measure(std::span<const std::int32_t> choice, LayerCost& cost) const {
  const auto num_times = static_cast<std::size_t>(num_times_);
  std::vector<std::int64_t> change(num_times + 1, 0);
  // Of what is received, by phase.
  std::array<std::vector<std::int64_t>, 3> received_change = {change, change, change};
  std::int64_t saved_received = 0;
  cost.fixed_bytes = cost.saved_bytes = cost.late_bytes = 0;
  cost.saved_entry_bytes = cost.saved_exit_bytes = cost.entry_bytes = 0;
  cost.gradient_bytes = cost.late_gradient_bytes = cost.step_bytes = 0;
  for (const Piece& piece : pieces_) {
    const std::int64_t bytes = (*piece.bytes)[static_cast<std::size_t>(choice[piece.node])];
    if (bytes == 0) {
      continue;
    }
    const auto add = [&](std::vector<std::int64_t>& changes) {
      changes[static_cast<std::size_t>(piece.interval.begin)] += bytes;
      changes[static_cast<std::size_t>(piece.interval.end)] -= bytes;
    };
    add(change);
    if (piece.received) {
      add(received_change[static_cast<std::size_t>(*piece.received)]);
      addReceived(piece, bytes, cost);
    }
    if (piece.span == MemorySpan::kFixed) {
      cost.fixed_bytes += bytes;
    } else if (piece.span == MemorySpan::kSaved) {
      cost.saved_bytes += bytes;
      if (piece.received) saved_received += bytes;
      if (piece.is_entry) cost.saved_entry_bytes += bytes;
      if (piece.is_exit) cost.saved_exit_bytes = std::max(cost.saved_exit_bytes, bytes);
    } else if (piece.span == MemorySpan::kLate) {
      cost.late_bytes += bytes;
    }
  }
  std::int64_t alive = 0;
  std::array<std::int64_t, 2> received = {};
  std::array<std::int64_t, 4> most = {};  // by LayerPlace, without what is received there
  std::int64_t most_in_update = 0;
  for (std::size_t time = 0; time < num_times; ++time) {
    alive += change[time];
    if (static_cast<std::int64_t>(time) >= first_update_) {
      most_in_update = std::max(most_in_update, alive);
      continue;
    }
    received[0] += received_change[0][time];
    received[1] += received_change[1][time];
    most[kInside] = std::max(most[kInside], alive);
    most[kFirst] = std::max(most[kFirst], alive - received[0]);
    most[kLast] = std::max(most[kLast], alive - received[1]);
    most[kAlone] = std::max(most[kAlone], alive - received[0] - received[1]);
  }
  for (const LayerPlace place : {kInside, kFirst, kLast, kAlone}) {
    std::int64_t counted = cost.fixed_bytes + cost.saved_bytes + cost.late_bytes;
    if ((place & kFirst) != 0) counted -= saved_received;
    if ((place & kLast) != 0) counted -= cost.late_gradient_bytes;
    cost.transient_bytes[place] = std::max<std::int64_t>(0, most[place] - counted);
  }
  cost.update_bytes = std::max<std::int64_t>(0, most_in_update - cost.fixed_bytes);
}

}  // namespace shardwright
