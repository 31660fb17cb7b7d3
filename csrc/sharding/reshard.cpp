#include "sharding/reshard.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/checked.h"

namespace shardwright {

const char* stepKindName(StepKind kind) {
  switch (kind) {
    case StepKind::kAllGather:
      return "all_gather";
    case StepKind::kReduceScatter:
      return "reduce_scatter";
    case StepKind::kAllReduce:
      return "all_reduce";
    case StepKind::kAllToAll:
      return "all_to_all";
    case StepKind::kSlice:
      return "slice";
    case StepKind::kMask:
      return "mask";
  }
  return "slice";
}

double collectiveCostUs(StepKind kind, const DeviceMesh& mesh, int axis, double bytes) {
  const double n = mesh.size(axis);
  if (n <= 1 || kind == StepKind::kSlice || kind == StepKind::kMask) {
    return 0;
  }
  const AxisCost& cost = mesh.axis(axis);
  const CollectiveConstants& constants = mesh.constants();
  const double ring_us = cost.beta_us_per_byte * (n - 1) / n * bytes;
  switch (kind) {
    case StepKind::kAllGather:
      return cost.alpha_us + ring_us + constants.all_gather_us;
    case StepKind::kReduceScatter:
      return cost.alpha_us + ring_us * constants.reduce_scatter_penalty +
             constants.reduce_scatter_us;
    case StepKind::kAllReduce:
      return cost.alpha_us + 2 * ring_us + constants.all_reduce_us;
    case StepKind::kAllToAll: {
      const double penalty =
          constants.all_to_all_penalty > 0 ? constants.all_to_all_penalty : n / 2;
      return cost.alpha_us + ring_us / n * cost.all_to_all_scale * penalty +
             constants.all_to_all_us;
    }
    case StepKind::kSlice:
    case StepKind::kMask:
      break;
  }
  return 0;
}

namespace {

// Searches compare prices in integers, so that sums in different order tie exactly.
constexpr double kSearchUnitsPerUs = 1e6;

// 16 bits per axis: kind, atom, order, pending reduction.
std::uint64_t encode(const ShardingSpec& spec) {
  std::uint64_t code = 0;
  for (const Placement& placement : spec) {
    std::uint64_t bits = static_cast<std::uint64_t>(placement.kind);
    if (placement.kind == Placement::Kind::kShard) {
      bits |= static_cast<std::uint64_t>(placement.order) << 2 |
              static_cast<std::uint64_t>(placement.atom) << 4;
    } else if (placement.kind == Placement::Kind::kPartial) {
      bits |= static_cast<std::uint64_t>(placement.reduce) << 2;
    }
    code = code << 16 | bits;
  }
  return code;
}

bool isHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// How good a path is; less is better, compared in this order.
struct PathKey {
  std::int64_t cost = 0;
  int num_steps = 0;
  std::int64_t peak_bytes = 0;
  auto operator<=>(const PathKey&) const = default;
};

}  // namespace

// The graph of specs, built as far as it is asked for, and shortest paths from each source asked.
class ReshardTable::Search {
 public:
  Search(const TensorAtoms& atoms, DType dtype, const DeviceMesh& mesh)
      : dtype_(dtype), mesh_(&mesh) {
    atoms_.sizes = atoms.sizes;
    total_bytes_ = elementBytes(dtype);
    for (const std::int64_t size : atoms.sizes) {
      total_bytes_ = checkedMul(total_bytes_, size);
    }
    for (const StepKind kind : kStepKinds) {
      allowed_.push_back(!mesh.constants().forbidden.contains(stepKindName(kind)));
    }
  }

  int indexOf(const ShardingSpec& spec) {
    const auto found = ids_.find(encode(spec));
    if (found != ids_.end() && states_[static_cast<std::size_t>(found->second)].spec == spec) {
      return found->second;
    }
    return isValid(atoms_, spec, mesh_->shape()) ? intern(spec) : -1;
  }

  double costUs(int from, int to) {
    if (from < 0 || to < 0) {
      return kUnreachableUs;
    }
    const std::vector<Reached>& tree = pathsFrom(from);
    const auto index = static_cast<std::size_t>(to);
    return index < tree.size() && tree[index].found ? tree[index].cost_us : kUnreachableUs;
  }

  std::optional<std::vector<ReshardStep>> steps(int from, int to) {
    if (costUs(from, to) == kUnreachableUs) {
      return std::nullopt;
    }
    const std::vector<Reached>& tree = pathsFrom(from);
    std::vector<ReshardStep> result;
    for (int state = to; state != from;) {
      const Reached& reached = tree[static_cast<std::size_t>(state)];
      const auto previous = static_cast<std::size_t>(reached.previous);
      ReshardStep step = states_[previous].edges[static_cast<std::size_t>(reached.edge)].step;
      step.after = states_[static_cast<std::size_t>(state)].spec;
      result.push_back(std::move(step));
      state = reached.previous;
    }
    std::reverse(result.begin(), result.end());
    return result;
  }

 private:
  struct Edge {
    int to = 0;
    std::int64_t cost = 0;
    ReshardStep step;  // without `after`
  };
  struct State {
    ShardingSpec spec;
    std::uint64_t code = 0;
    std::int64_t local_bytes = 0;
    bool expanded = false;
    std::vector<Edge> edges;
  };
  struct Reached {
    bool found = false;
    PathKey key;
    double cost_us = 0;
    int previous = -1;
    int edge = -1;
  };

  int intern(const ShardingSpec& spec) {
    const std::uint64_t code = encode(spec);
    const auto [entry, inserted] = ids_.try_emplace(code, static_cast<int>(states_.size()));
    if (inserted) {
      State state;
      state.spec = spec;
      state.code = code;
      state.local_bytes = total_bytes_;
      for (const std::int64_t shards : atomShards(atoms_, spec, mesh_->shape())) {
        state.local_bytes /= shards;
      }
      states_.push_back(std::move(state));
    }
    return entry->second;
  }

  // Adds the edge for `step`, which puts `placement` on its axis. Contract: the result is valid.
  void connect(int from, StepKind kind, int axis, const Placement& placement, int atom, int to_atom,
               ReduceOp reduce) {
    if (!allowed_[static_cast<std::size_t>(kind)]) {
      return;
    }
    const auto source = static_cast<std::size_t>(from);
    ShardingSpec after = states_[source].spec;
    after[static_cast<std::size_t>(axis)] = placement;
    Edge edge;
    edge.to = intern(after);
    edge.step.kind = kind;
    edge.step.axis = axis;
    edge.step.atom = atom;
    edge.step.to_atom = to_atom;
    edge.step.reduce = reduce;
    edge.step.reduce_dtype = dtype_;
    edge.step.bytes = states_[source].local_bytes;
    if (kind == StepKind::kAllGather || kind == StepKind::kAllToAll) {
      edge.step.bytes = checkedMul<std::int64_t>(edge.step.bytes, mesh_->size(axis));
    }
    const bool reduces = kind == StepKind::kReduceScatter || kind == StepKind::kAllReduce;
    if (reduces && isHalf(dtype_) && mesh_->constants().reduce_in_fp32) {
      edge.step.reduce_dtype = DType::kFloat32;
      edge.step.bytes = checkedMul<std::int64_t>(edge.step.bytes, 2);
    }
    edge.step.cost_us = collectiveCostUs(kind, *mesh_, axis, static_cast<double>(edge.step.bytes));
    edge.cost = std::llround(edge.step.cost_us * kSearchUnitsPerUs);
    states_[source].edges.push_back(std::move(edge));
  }

  void expand(int from) {
    const auto source = static_cast<std::size_t>(from);
    if (std::exchange(states_[source].expanded, true)) {
      return;
    }
    const ShardingSpec spec = states_[source].spec;
    const std::vector<std::int64_t> shards = atomShards(atoms_, spec, mesh_->shape());
    std::vector<int> axes_on(atoms_.sizes.size(), 0);
    bool only_sums_pending = true;
    for (const Placement& placement : spec) {
      if (placement.kind == Placement::Kind::kShard) {
        ++axes_on[static_cast<std::size_t>(placement.atom)];
      } else if (placement.kind == Placement::Kind::kPartial) {
        only_sums_pending = only_sums_pending && placement.reduce == ReduceOp::kSum;
      }
    }
    for (int axis = 0; axis < mesh_->numAxes(); ++axis) {
      const Placement& now = spec[static_cast<std::size_t>(axis)];
      // Where a shard of this axis could go: each atom that divides once more.
      const auto connect_shards = [&](StepKind kind, int left_atom) {
        for (std::size_t atom = 0; atom < atoms_.sizes.size(); ++atom) {
          const int index = static_cast<int>(atom);
          if (index == left_atom || atoms_.sizes[atom] % (shards[atom] * mesh_->size(axis)) != 0) {
            continue;
          }
          const bool exchange = kind == StepKind::kAllToAll;
          connect(from, kind, axis, Placement::shard(index, axes_on[atom]),
                  exchange ? left_atom : index, exchange ? index : -1, now.reduce);
        }
      };
      switch (now.kind) {
        case Placement::Kind::kReplicate:
          connect_shards(StepKind::kSlice, -1);
          if (isFloating(dtype_) && only_sums_pending) {
            connect(from, StepKind::kMask, axis, Placement::partial(ReduceOp::kSum), -1, -1,
                    ReduceOp::kSum);
          }
          break;
        case Placement::Kind::kPartial:
          connect(from, StepKind::kAllReduce, axis, Placement::replicate(), -1, -1, now.reduce);
          connect_shards(StepKind::kReduceScatter, -1);
          break;
        case Placement::Kind::kShard:
          if (now.order + 1 == axes_on[static_cast<std::size_t>(now.atom)]) {
            connect(from, StepKind::kAllGather, axis, Placement::replicate(), now.atom, -1,
                    ReduceOp::kSum);
            connect_shards(StepKind::kAllToAll, now.atom);
          }
          break;
      }
    }
  }

  // Dijkstra. Ties go by key, then by the code of the spec, so the answer does not depend on which
  // specs were asked for before.
  const std::vector<Reached>& pathsFrom(int from) {
    std::vector<Reached>& tree = trees_[from];
    if (!tree.empty()) {
      return tree;
    }
    struct Entry {
      PathKey key;
      std::uint64_t code;
      int state;
      auto operator<=>(const Entry&) const = default;
    };
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto source = static_cast<std::size_t>(from);
    tree.resize(states_.size());
    tree[source].found = true;
    tree[source].key.peak_bytes = states_[source].local_bytes;
    queue.push({tree[source].key, states_[source].code, from});
    while (!queue.empty()) {
      const Entry top = queue.top();
      queue.pop();
      const auto here = static_cast<std::size_t>(top.state);
      if (top.key != tree[here].key) {
        continue;
      }
      expand(top.state);
      tree.resize(states_.size());
      for (std::size_t i = 0; i < states_[here].edges.size(); ++i) {
        const Edge& edge = states_[here].edges[i];
        Reached& next = tree[static_cast<std::size_t>(edge.to)];
        const PathKey key = {
            checkedAdd(top.key.cost, edge.cost), top.key.num_steps + 1,
            std::max(top.key.peak_bytes, states_[static_cast<std::size_t>(edge.to)].local_bytes)};
        if (!next.found || key < next.key) {
          next = {true, key, tree[here].cost_us + edge.step.cost_us, top.state,
                  static_cast<int>(i)};
          queue.push({key, states_[static_cast<std::size_t>(edge.to)].code, edge.to});
        }
      }
    }
    return tree;
  }

  TensorAtoms atoms_;  // sizes only
  DType dtype_;
  const DeviceMesh* mesh_;
  std::int64_t total_bytes_ = 0;
  std::vector<bool> allowed_;  // by StepKind
  std::vector<State> states_;
  std::unordered_map<std::uint64_t, int> ids_;
  std::unordered_map<int, std::vector<Reached>> trees_;
};

ReshardTable::ReshardTable(const TensorAtoms& atoms, DType dtype, const DeviceMesh& mesh)
    : search_(std::make_unique<Search>(atoms, dtype, mesh)) {}
ReshardTable::~ReshardTable() = default;
ReshardTable::ReshardTable(ReshardTable&&) noexcept = default;
ReshardTable& ReshardTable::operator=(ReshardTable&&) noexcept = default;

double ReshardTable::costUs(const ShardingSpec& from, const ShardingSpec& to) {
  return search_->costUs(search_->indexOf(from), search_->indexOf(to));
}

std::optional<std::vector<ReshardStep>> ReshardTable::steps(const ShardingSpec& from,
                                                            const ShardingSpec& to) {
  return search_->steps(search_->indexOf(from), search_->indexOf(to));
}

int ReshardTable::specIndex(const ShardingSpec& spec) { return search_->indexOf(spec); }

double ReshardTable::costUs(int from, int to) { return search_->costUs(from, to); }

std::optional<std::vector<ReshardStep>> planReshard(const TensorAtoms& atoms, DType dtype,
                                                    const ShardingSpec& from,
                                                    const ShardingSpec& to,
                                                    const DeviceMesh& mesh) {
  return ReshardTable(atoms, dtype, mesh).steps(from, to);
}

ReshardTable& ReshardTableCache::table(const TensorAtoms& atoms, DType dtype) {
  const auto key = std::make_pair(atoms.sizes, dtype);
  const auto found = tables_.find(key);
  if (found != tables_.end()) {
    return found->second;
  }
  return tables_.try_emplace(key, atoms, dtype, *mesh_).first->second;
}

}  // namespace shardwright
