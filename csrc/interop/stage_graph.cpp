#include "interop/stage_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.h"

namespace shardwright {
namespace {

// What one pair of classes of ports at a boundary costs.
struct Crossing {
  std::int32_t before = 0;  // class of the port in front of the boundary
  std::int32_t after = 0;
  double time = 0;
  double link_time = 0;
};

// Ports of a boundary with the same costs are one class.
struct BoundaryClasses {
  std::vector<std::int32_t> before;  // by port
  std::vector<std::int32_t> after;
  std::vector<Crossing> crossings;  // possible ones only
};

class BoundaryClassifier {
 public:
  explicit BoundaryClassifier(const StageProblem& problem)
      : problem_(problem),
        num_ports_(problem.submeshes.size() * static_cast<std::size_t>(problem.num_specs)) {}

  // One class on both sides, nothing to pay: the outer ends and free boundaries.
  BoundaryClasses open() const {
    const std::vector<std::int32_t> one(num_ports_, 0);
    return {one, one, {Crossing{}}};
  }

  BoundaryClasses at(int layer) const {
    if (problem_.boundaries.empty() || layer == 0 || layer == problem_.num_layers) return open();
    const Boundary& boundary = problem_.boundaries[static_cast<std::size_t>(layer)];
    if (boundary.time.size() == 1) {
      BoundaryClasses classes = open();
      classes.crossings[0] = crossing(boundary, 0, 0);
      if (std::isinf(boundary.time[0])) classes.crossings.clear();
      return classes;
    }
    BoundaryClasses classes;
    std::map<std::vector<double>, std::int32_t> rows;
    std::map<std::vector<double>, std::int32_t> columns;
    std::vector<std::size_t> row_port;
    std::vector<std::size_t> column_port;
    for (std::size_t p = 0; p < num_ports_; ++p) {
      classes.before.push_back(classOf(rows, costs(boundary, p, true), p, row_port));
      classes.after.push_back(classOf(columns, costs(boundary, p, false), p, column_port));
    }
    for (std::size_t b = 0; b < row_port.size(); ++b) {
      for (std::size_t a = 0; a < column_port.size(); ++a) {
        Crossing pair = crossing(boundary, row_port[b], column_port[a]);
        pair.before = static_cast<std::int32_t>(b);
        pair.after = static_cast<std::int32_t>(a);
        if (!std::isinf(pair.time) && !std::isinf(pair.link_time)) {
          classes.crossings.push_back(pair);
        }
      }
    }
    return classes;
  }

 private:
  static std::int32_t classOf(std::map<std::vector<double>, std::int32_t>& known,
                              std::vector<double> costs, std::size_t port,
                              std::vector<std::size_t>& first_port) {
    const auto next = static_cast<std::int32_t>(known.size());
    const auto [found, is_new] = known.emplace(std::move(costs), next);
    if (is_new) first_port.push_back(port);
    return found->second;
  }

  Crossing crossing(const Boundary& boundary, std::size_t before, std::size_t after) const {
    const std::size_t entry = boundary.time.size() == 1 ? 0 : before * num_ports_ + after;
    const double time = boundary.time[entry];
    return {0, 0, time, boundary.link_time.empty() ? time / 2 : boundary.link_time[entry]};
  }

  std::vector<double> costs(const Boundary& boundary, std::size_t port, bool is_before) const {
    std::vector<double> values;
    for (std::size_t other = 0; other < num_ports_; ++other) {
      const Crossing pair =
          is_before ? crossing(boundary, port, other) : crossing(boundary, other, port);
      values.push_back(pair.time);
      values.push_back(pair.link_time);
    }
    return values;
  }

  const StageProblem& problem_;
  std::size_t num_ports_;
};

class StageGraphBuilder {
 public:
  StageGraphBuilder(const StageProblem& problem, std::optional<int> most_stages)
      : problem_(problem), most_stages_(most_stages), num_layers_(problem.num_layers) {
    const BoundaryClassifier classifier(problem);
    for (int layer = 0; layer <= num_layers_; ++layer) classes_.push_back(classifier.at(layer));
    num_levels_ = countLevels();
    groupKinds();
    placeNodes();
  }

  StageGraph build() {
    DeviceGraph& graph = result_.graph;
    graph.num_devices = problem_.num_devices;
    graph.use_all_devices = problem_.use_all_devices;
    graph.peak_weight = problem_.num_microbatches - 1;
    graph.end = nodeOf(num_layers_, 0, 0);
    for (int level = 0; level < num_levels_; ++level) {
      graph.starts.push_back(nodeOf(0, 0, level));
    }
    graph.first_arc.push_back(0);
    for (int begin = 0; begin <= num_layers_; ++begin) {
      const auto& crossings = classes_[static_cast<std::size_t>(begin)].crossings;
      for (std::size_t c = 0; c < crossings.size(); ++c) {
        for (int level = 0; level < num_levels_; ++level) {
          addArcs(begin, crossings[c], level);
          graph.first_arc.push_back(graph.arcs.size());
          result_.boundary_of_node.push_back(begin);
        }
      }
    }
    return std::move(result_);
  }

 private:
  // Kinds that differ only in their variant: the fastest that fits counts.
  struct KindGroup {
    std::int32_t submesh = 0;
    std::size_t entry_port = 0;
    std::size_t exit_port = 0;
    std::vector<std::int32_t> kinds;
  };

  void groupKinds() {
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::size_t> known;
    const auto specs = static_cast<std::size_t>(problem_.num_specs);
    for (std::size_t k = 0; k < problem_.kinds.size(); ++k) {
      const StageKind& kind = problem_.kinds[k];
      const auto [found, is_new] =
          known.try_emplace({kind.submesh, kind.entry_spec, kind.exit_spec}, groups_.size());
      if (is_new) {
        const std::size_t port = static_cast<std::size_t>(kind.submesh) * specs;
        groups_.push_back({kind.submesh,
                           port + static_cast<std::size_t>(kind.entry_spec),
                           port + static_cast<std::size_t>(kind.exit_spec),
                           {}});
      }
      groups_[found->second].kinds.push_back(static_cast<std::int32_t>(k));
    }
  }

  bool hasMemory() const {
    return problem_.memory_limit_bytes.has_value() && !problem_.memory.empty();
  }

  int inFlight(int num_following) const {
    return microbatchesInFlight(problem_.schedule, num_following,
                                most_stages_.value_or(num_layers_), problem_.num_microbatches);
  }

  bool fits(std::int32_t kind, int begin, int end, int num_following) const {
    if (!hasMemory()) return true;
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
    if (!hasMemory() || inFlight(0) == inFlight(most)) return 1;
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

  void placeNodes() {
    std::int32_t next = 0;
    for (const BoundaryClasses& classes : classes_) {
      first_node_.push_back(next);
      next += static_cast<std::int32_t>(classes.crossings.size()) * num_levels_;
    }
  }

  std::int32_t nodeOf(int boundary, std::size_t crossing, int level) const {
    return first_node_[static_cast<std::size_t>(boundary)] +
           static_cast<std::int32_t>(crossing) * num_levels_ + level;
  }

  void addArcs(int begin, const Crossing& entry, int level) {
    if (begin == num_layers_) return;
    const BoundaryClasses& here = classes_[static_cast<std::size_t>(begin)];
    for (const KindGroup& group : groups_) {
      if (here.after[group.entry_port] != entry.after) continue;
      for (int end = begin + 1; end <= num_layers_; ++end) {
        if (level > 0) addArcsTo(begin, entry, group, end, level - 1);
        // A level that stands for more leads to itself, too.
        if (level == num_levels_ - 1 && !most_stages_) addArcsTo(begin, entry, group, end, level);
      }
    }
  }

  void addArcsTo(int begin, const Crossing& entry, const KindGroup& group, int end, int level) {
    if (end == num_layers_ && level > 0) return;  // nothing follows the last layer
    if (level > num_layers_ - end) return;
    std::int32_t best_kind = -1;
    double time = std::numeric_limits<double>::infinity();
    for (const std::int32_t kind : group.kinds) {
      const double kind_time = problem_.times[static_cast<std::size_t>(kind)].at(begin, end);
      if (kind_time < time && fits(kind, begin, end, level)) {
        time = kind_time;
        best_kind = kind;
      }
    }
    if (best_kind < 0) return;
    const BoundaryClasses& there = classes_[static_cast<std::size_t>(end)];
    const std::int32_t devices =
        problem_.submeshes[static_cast<std::size_t>(group.submesh)].numDevices();
    if (devices > problem_.num_devices) return;
    for (std::size_t c = 0; c < there.crossings.size(); ++c) {
      const Crossing& exit = there.crossings[c];
      if (exit.before != there.before[group.exit_port]) continue;
      DeviceArc arc{0, 0, nodeOf(end, c, level), devices};
      if (problem_.charge == TransferCharge::kBothStages) {
        arc.cost = time + entry.time + exit.time;
        arc.peak = arc.cost;
      } else {
        arc.cost = time + exit.time;
        arc.peak = std::max(time, exit.link_time);
      }
      result_.graph.arcs.push_back(arc);
      result_.kind_of_arc.push_back(best_kind);
    }
  }

  const StageProblem& problem_;
  std::optional<int> most_stages_;
  int num_layers_;
  int num_levels_ = 1;
  std::vector<BoundaryClasses> classes_;
  std::vector<KindGroup> groups_;
  std::vector<std::int32_t> first_node_;
  StageGraph result_;
};

}  // namespace

StageGraph buildStageGraph(const StageProblem& problem, std::optional<int> most_stages) {
  return StageGraphBuilder(problem, most_stages).build();
}

}  // namespace shardwright
