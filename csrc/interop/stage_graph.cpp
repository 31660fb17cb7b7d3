#include "interop/stage_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "interop/device_bounds.h"
#include "interop/stage_boundaries.h"

namespace shardwright {
namespace {

class StageGraphBuilder {
 public:
  StageGraphBuilder(const StageProblem& problem, std::optional<int> most_stages,
                    const std::vector<bool>& kept_submeshes)
      : problem_(problem),
        most_stages_(most_stages),
        num_layers_(problem.num_layers),
        has_memory_(problem.memory_limit_bytes.has_value() && !problem.memory.empty()) {
    for (int layer = 0; layer <= num_layers_; ++layer) {
      classes_.push_back(classifyBoundary(problem, layer));
    }
    num_levels_ = countLevels();
    groupKinds(kept_submeshes);
    placeNodes();
  }

  StageGraph build(const std::optional<ArcFilter>& filter) {
    DeviceGraph& graph = result_.graph;
    graph.num_devices = problem_.num_devices;
    graph.use_all_devices = problem_.use_all_devices;
    graph.peak_weight = problem_.num_microbatches - 1;
    graph.end = nodeOf(num_layers_, 0, 0);
    for (int level = problem_.num_stages.value_or(0); level < num_levels_; ++level) {
      graph.starts.push_back(nodeOf(0, 0, level));
    }
    if (filter) boundArcs(*filter);
    graph.first_arc.push_back(0);
    for (std::size_t v = 0; v < nodes_.size(); ++v) {
      forArcs(v, kNoPath, [&](const DeviceArc& arc, std::int32_t kind) {
        if (filter && isDear(*filter, v, arc)) return;
        graph.arcs.push_back(arc);
        result_.kind_of_arc.push_back(kind);
      });
      graph.first_arc.push_back(graph.arcs.size());
      result_.boundary_of_node.push_back(nodes_[v].boundary);
    }
    return std::move(result_);
  }

 private:
  // Kinds that differ only in their variant: the fastest that fits counts.
  struct KindGroup {
    std::int32_t devices = 0;
    std::size_t entry_port = 0;
    std::size_t exit_port = 0;
    std::vector<std::int32_t> kinds;
  };

  void groupKinds(const std::vector<bool>& kept_submeshes) {
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::size_t> known;
    const auto specs = static_cast<std::size_t>(problem_.num_specs);
    for (std::size_t k = 0; k < problem_.kinds.size(); ++k) {
      const StageKind& kind = problem_.kinds[k];
      if (!kept_submeshes.empty() && !kept_submeshes[static_cast<std::size_t>(kind.submesh)]) {
        continue;
      }
      const auto [found, is_new] =
          known.try_emplace({kind.submesh, kind.entry_spec, kind.exit_spec}, groups_.size());
      if (is_new) {
        const std::size_t port = static_cast<std::size_t>(kind.submesh) * specs;
        groups_.push_back({problem_.submeshes[static_cast<std::size_t>(kind.submesh)].numDevices(),
                           port + static_cast<std::size_t>(kind.entry_spec),
                           port + static_cast<std::size_t>(kind.exit_spec),
                           {}});
      }
      groups_[found->second].kinds.push_back(static_cast<std::int32_t>(k));
    }
  }

  int inFlight(int num_following) const {
    return microbatchesInFlight(problem_.schedule, num_following,
                                most_stages_.value_or(num_layers_), problem_.num_microbatches);
  }

  bool fits(std::int32_t kind, int begin, int end, int num_following) const {
    if (!has_memory_) return true;
    const StageMemory& memory = problem_.memory[static_cast<std::size_t>(kind)];
    const Int128 bytes =
        Int128{memory.fixed_bytes.at(begin, end)} +
        Int128{memory.per_microbatch_bytes.at(begin, end)} * inFlight(num_following);
    return bytes <= *problem_.memory_limit_bytes;
  }

  // Levels of the number of stages that follow. Unless they are limited, the last level stands for
  // that many and more, and there are no more levels than make a difference to what fits.
  int countLevels() const {
    if (most_stages_) return *most_stages_ + 1;
    const int most = std::min(num_layers_, problem_.num_microbatches) - 1;
    if (!has_memory_ || inFlight(0) == inFlight(most)) return 1;
    int level = 0;
    for (std::size_t k = 0; k < problem_.kinds.size(); ++k) {
      for (int begin = 0; begin < num_layers_; ++begin) {
        for (int end = begin + 1; end <= num_layers_; ++end) {
          if (std::isinf(problem_.times[k].at(begin, end))) continue;
          const auto kind = static_cast<std::int32_t>(k);
          if (!fits(kind, begin, end, level) || fits(kind, begin, end, most)) continue;
          while (level < most && fits(kind, begin, end, level)) ++level;
        }
      }
    }
    return level + 1;
  }

  // Where stages and transfers are arcs of their own, a node says how tensors lie on one side of
  // the boundary alone; otherwise it is a crossing.
  struct Node {
    std::int32_t boundary = 0;
    std::int32_t level = 0;
    Crossing crossing;
    bool is_exit = false;  // in front of a transfer: only crossing.before counts
  };

  bool hasTransferArcs() const { return problem_.charge == TransferCharge::kLink; }

  void placeNodes() {
    for (int boundary = 0; boundary <= num_layers_; ++boundary) {
      const BoundaryClasses& here = classes_[static_cast<std::size_t>(boundary)];
      if (hasTransferArcs()) {
        first_exit_.push_back(static_cast<std::int32_t>(nodes_.size()));
        for (std::int32_t before = 0; before < numClasses(here.before); ++before) {
          addNodes({boundary, 0, {.before = before}, true});
        }
        first_node_.push_back(static_cast<std::int32_t>(nodes_.size()));
        for (std::int32_t after = 0; after < numClasses(here.after); ++after) {
          addNodes({boundary, 0, {.after = after}});
        }
      } else {
        first_node_.push_back(static_cast<std::int32_t>(nodes_.size()));
        for (const Crossing& crossing : here.crossings) addNodes({boundary, 0, crossing});
      }
    }
  }

  void addNodes(Node node) {
    for (node.level = 0; node.level < num_levels_; ++node.level) nodes_.push_back(node);
  }

  static std::int32_t numClasses(const std::vector<std::int32_t>& classes) {
    return *std::ranges::max_element(classes) + 1;
  }

  // `side` is a crossing, or the class of ports behind the boundary.
  std::int32_t nodeOf(int boundary, std::size_t side, int level) const {
    return first_node_[static_cast<std::size_t>(boundary)] +
           static_cast<std::int32_t>(side) * num_levels_ + level;
  }

  std::int32_t exitNodeOf(int boundary, std::int32_t before, int level) const {
    return first_exit_[static_cast<std::size_t>(boundary)] + before * num_levels_ + level;
  }

  // Calls visit(arc, kind) for every arc of a node whose stage alone does not take more than `cap`.
  template <typename Visit>
  void forArcs(std::size_t v, double cap, const Visit& visit) const {
    const Node& node = nodes_[v];
    const BoundaryClasses& here = classes_[static_cast<std::size_t>(node.boundary)];
    if (node.is_exit) {
      for (const Crossing& crossing : here.crossings) {
        if (crossing.before != node.crossing.before || crossing.link_time > cap) continue;
        const auto after = static_cast<std::size_t>(crossing.after);
        visit(DeviceArc{crossing.time, crossing.link_time, nodeOf(node.boundary, after, node.level),
                        0},
              kTransferArc);
      }
      return;
    }
    if (node.boundary == num_layers_) return;
    for (const KindGroup& group : groups_) {
      if (here.after[group.entry_port] != node.crossing.after) continue;
      if (group.devices > problem_.num_devices) continue;
      if (node.level > 0) forArcsOf(node, group, node.level - 1, cap, visit);
      // A level that stands for more leads to itself, too.
      if (node.level == num_levels_ - 1 && !most_stages_) {
        forArcsOf(node, group, node.level, cap, visit);
      }
    }
  }

  template <typename Visit>
  void forArcsOf(const Node& node, const KindGroup& group, int level, double cap,
                 const Visit& visit) const {
    // As many stages as the level says must find layers behind; none, when it is 0 and stands for
    // itself alone.
    const int last = level > 0 ? num_layers_ - level : num_layers_;
    // One kind and no memory, which is what large problems have, needs no choice.
    const bool is_plain = group.kinds.size() == 1 && !has_memory_;
    const double* plain_times =
        problem_.times[static_cast<std::size_t>(group.kinds[0])].row(node.boundary);
    for (int end = node.boundary + 1; end <= last; ++end) {
      std::int32_t best_kind = -1;
      double time = kNoPath;
      if (is_plain) {
        time = plain_times[end - node.boundary - 1];
        if (time > cap) continue;
        if (time < kNoPath) best_kind = group.kinds[0];
      } else {
        for (const std::int32_t kind : group.kinds) {
          const double kind_time =
              problem_.times[static_cast<std::size_t>(kind)].at(node.boundary, end);
          if (kind_time <= cap && kind_time < time && fits(kind, node.boundary, end, level)) {
            time = kind_time;
            best_kind = kind;
          }
        }
      }
      if (best_kind < 0) continue;
      const BoundaryClasses& there = classes_[static_cast<std::size_t>(end)];
      const std::int32_t before = there.before[group.exit_port];
      if (hasTransferArcs()) {
        const double peak = time + waitOf(node.boundary, group.entry_port, &Boundary::entry_wait) +
                            waitOf(end, group.exit_port, &Boundary::exit_wait);
        if (peak > cap) continue;
        visit(DeviceArc{time, peak, exitNodeOf(end, before, level), group.devices}, best_kind);
        continue;
      }
      for (std::size_t c = 0; c < there.crossings.size(); ++c) {
        const Crossing& exit = there.crossings[c];
        if (exit.before != before) continue;
        const double cost = time + node.crossing.time + exit.time;
        if (cost <= cap)
          visit(DeviceArc{cost, cost, nodeOf(end, c, level), group.devices}, best_kind);
      }
    }
  }

  double waitOf(int boundary, std::size_t port, std::vector<double> Boundary::*waits) const {
    if (problem_.boundaries.empty() || boundary == 0 || boundary == num_layers_) return 0;
    const std::vector<double>& list =
        problem_.boundaries[static_cast<std::size_t>(boundary)].*waits;
    return list.empty() ? 0 : list[port];
  }

  double weight() const { return result_.graph.peak_weight; }

  // Bounds on what lies before and behind every node, without keeping the arcs: for problems whose
  // arcs together would fill the memory.
  void boundArcs(const ArcFilter& filter) {
    cap_ = kNoPath;
    price_ = filter.price;
    double least = leastSum(price_);
    // The least sum bounds the peak of anything better; without larger peaks the sum is larger. A
    // price good for small peaks is too high for large ones, so others are tried on the way.
    constexpr int kMostRounds = 6;
    for (int round = 0; round < kMostRounds && weight() > 0; ++round) {
      for (const double factor : {1.0 / 3, 3.0}) {
        const double sum = leastSum(price_ * factor);
        if (sum <= least) continue;
        least = sum;
        price_ *= factor;
        break;
      }
      double cap = (filter.value - least) / weight();
      cap += roundingError(std::abs(cap) + std::abs(filter.value) / weight());
      if (cap > 0.99 * cap_) break;
      cap_ = cap;
      least = leastSum(price_);
    }
    passAfter(price_);
    passBefore(price_);
    // No path has a smaller peak than the least with which the devices suffice.
    constexpr int kHalvings = 8;
    double high = std::isinf(cap_) ? 0 : cap_;
    for (int halving = 0; halving < kHalvings && high > least_peak_; ++halving) {
      const double middle = (least_peak_ + high) / 2;
      (fewestDevices(middle) > problem_.num_devices ? least_peak_ : high) = middle;
    }
  }

  // Lower bound on the sum of costs of paths with peaks up to cap_.
  double leastSum(double price) {
    passAfter(price);
    double least = kNoPath;
    for (const std::int32_t start : result_.graph.starts) {
      least = std::min(least, after_[static_cast<std::size_t>(start)]);
    }
    return least - price * problem_.num_devices;
  }

  void passAfter(double price) {
    after_.assign(nodes_.size(), kNoPath);
    after_[static_cast<std::size_t>(result_.graph.end)] = 0;
    for (std::size_t v = nodes_.size(); v-- > 0;) {
      double best = after_[v];
      forArcs(v, cap_, [&](const DeviceArc& arc, std::int32_t) {
        best = std::min(best,
                        arc.cost + price * arc.devices + after_[static_cast<std::size_t>(arc.to)]);
      });
      after_[v] = best;
    }
  }

  void passBefore(double price) {
    before_.assign(nodes_.size(), kNoPath);
    for (const std::int32_t start : result_.graph.starts) {
      before_[static_cast<std::size_t>(start)] = 0;
    }
    for (std::size_t v = 0; v < nodes_.size(); ++v) {
      const double base = before_[v];
      if (base == kNoPath) continue;
      forArcs(v, cap_, [&](const DeviceArc& arc, std::int32_t) {
        double& to = before_[static_cast<std::size_t>(arc.to)];
        to = std::min(to, base + arc.cost + price * arc.devices);
      });
    }
  }

  std::int64_t fewestDevices(double cap) const {
    constexpr std::int64_t kMany = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int64_t> fewest(nodes_.size(), kMany);
    fewest[static_cast<std::size_t>(result_.graph.end)] = 0;
    for (std::size_t v = nodes_.size(); v-- > 0;) {
      std::int64_t best = fewest[v];
      forArcs(v, cap, [&](const DeviceArc& arc, std::int32_t) {
        best = std::min(best, arc.devices + fewest[static_cast<std::size_t>(arc.to)]);
      });
      fewest[v] = best;
    }
    std::int64_t best = kMany;
    for (const std::int32_t start : result_.graph.starts) {
      best = std::min(best, fewest[static_cast<std::size_t>(start)]);
    }
    return best;
  }

  bool isDear(const ArcFilter& filter, std::size_t v, const DeviceArc& arc) const {
    const double all = price_ * problem_.num_devices;
    const double sum = before_[v] + arc.cost + price_ * arc.devices +
                       after_[static_cast<std::size_t>(arc.to)] - all;
    return arc.peak > cap_ ||
           sum + weight() * std::max(arc.peak, least_peak_) >
               filter.value + roundingError(std::abs(filter.value) + std::abs(all));
  }

  const StageProblem& problem_;
  std::optional<int> most_stages_;
  int num_layers_;
  bool has_memory_;
  int num_levels_ = 1;
  std::vector<BoundaryClasses> classes_;
  std::vector<KindGroup> groups_;
  std::vector<std::int32_t> first_node_;  // by boundary
  std::vector<std::int32_t> first_exit_;  // by boundary, with transfer arcs
  std::vector<Node> nodes_;
  // Of the filter: only arcs with peaks up to cap_, and paths with peaks from least_peak_.
  double price_ = 0;
  double cap_ = kNoPath;
  double least_peak_ = 0;
  std::vector<double> before_;
  std::vector<double> after_;
  StageGraph result_;
};

}  // namespace

StageGraph buildStageGraph(const StageProblem& problem, std::optional<int> most_stages,
                           const std::optional<ArcFilter>& filter,
                           const std::vector<bool>& kept_submeshes) {
  return StageGraphBuilder(problem, most_stages, kept_submeshes).build(filter);
}

}  // namespace shardwright
