#include "interop/stage_dp.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"
#include "interop/device_path.h"
#include "interop/stage_graph.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<PlannedStage> stagesOf(const StageGraph& graph, const DevicePath& path) {
  std::vector<PlannedStage> stages;
  std::int32_t begin = 0;
  for (const std::size_t arc : path.arcs) {
    if (graph.kind_of_arc[arc] == kTransferArc) continue;
    const std::int32_t end =
        graph.boundary_of_node[static_cast<std::size_t>(graph.graph.arcs[arc].to)];
    stages.push_back({begin, end, graph.kind_of_arc[arc]});
    begin = end;
  }
  return stages;
}

class StageSearch {
 public:
  StageSearch(const StageProblem& problem, const StageSearchOptions& options)
      : problem_(problem), options_(options), start_(Clock::now()) {}

  StageAnswer run() {
    value_ = kInfinity;
    answer_.lower_bound = kInfinity;
    search(problem_.num_stages);
    // Zero-bubble holds as many microbatches as there are stages: fewer stages, more that fits.
    const int most = std::min(problem_.num_layers, problem_.num_microbatches);
    if (problem_.schedule == ScheduleKind::kZeroBubble && !problem_.num_stages &&
        !everythingFits()) {
      for (int num_stages = most - 1; num_stages >= 1; --num_stages) search(num_stages);
    }
    conclude();
    return std::move(answer_);
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void search(std::optional<int> most_stages) {
    const std::optional<ArcFilter> filter = filterOfFewerShapes(most_stages);
    const StageGraph graph = buildStageGraph(problem_, most_stages, filter);
    const DevicePath path = findPath(graph);
    finished_ = finished_ && path.finished;
    answer_.lower_bound = std::min(answer_.lower_bound, path.lower_bound);
    consider(graph, path);
  }

  DevicePath findPath(const StageGraph& graph) {
    DevicePathOptions options;
    options.time_limit_s = options_.time_limit_s - seconds();
    options.is_interrupted = options_.is_interrupted;
    DevicePath path = findDevicePath(graph.graph, options);
    answer_.num_exact_runs += path.num_exact_runs;
    return path;
  }

  void consider(const StageGraph& graph, const DevicePath& path) {
    if (path.arcs.empty() || path.value >= value_) return;
    value_ = path.value;
    answer_.stages = stagesOf(graph, path);
  }

  // A problem with many shapes is solved with few of them first: stages that are good already leave
  // out most of the arcs, which together might not fit the memory.
  std::optional<ArcFilter> filterOfFewerShapes(std::optional<int> most_stages) {
    const double num_arcs =
        static_cast<double>(problem_.kinds.size()) * problem_.num_layers * problem_.num_layers / 2;
    if (num_arcs < options_.most_arcs) return std::nullopt;
    const std::vector<bool> kept = fewerShapes();
    if (std::ranges::all_of(kept, std::identity{})) return std::nullopt;
    const StageGraph graph = buildStageGraph(problem_, most_stages, std::nullopt, kept);
    const DevicePath path = findPath(graph);
    consider(graph, path);
    if (path.arcs.empty()) return std::nullopt;
    return ArcFilter{value_, path.price};
  }

  // By submesh: within a host, a power of two of hosts, or all devices.
  std::vector<bool> fewerShapes() const {
    std::vector<bool> kept;
    for (const SubmeshShape& shape : problem_.submeshes) {
      kept.push_back(std::has_single_bit(static_cast<unsigned>(shape.num_hosts)) ||
                     shape.numDevices() == problem_.num_devices);
    }
    return kept;
  }

  bool everythingFits() const {
    if (!problem_.memory_limit_bytes) return true;
    const int most = std::min(problem_.num_layers, problem_.num_microbatches);
    return std::ranges::all_of(problem_.memory, [&](const StageMemory& memory) {
      for (int i = 0; i < problem_.num_layers; ++i) {
        for (int j = i + 1; j <= problem_.num_layers; ++j) {
          if (memory.fixed_bytes.at(i, j) + most * memory.per_microbatch_bytes.at(i, j) >
              *problem_.memory_limit_bytes) {
            return false;
          }
        }
      }
      return true;
    });
  }

  void conclude() {
    answer_.seconds = seconds();
    if (answer_.stages.empty()) {
      answer_.status = finished_ ? StageStatus::kInfeasible : StageStatus::kTimeLimit;
      return;
    }
    answer_.status = finished_ ? StageStatus::kOptimal : StageStatus::kFeasible;
    answer_.evaluation = evaluateStages(problem_, answer_.stages);
    const double time = answer_.evaluation.time;
    if (!answer_.evaluation.valid() || std::abs(time - value_) > 1e-9 * std::abs(time)) {
      throw Error(ErrorKind::kInternal, "E921", "an answer of the stage search does not hold.",
                  {.values = {answer_.evaluation.violation, "claimed " + std::to_string(value_) +
                                                                ", found " + std::to_string(time)},
                   .advice = "report this with the tables"});
    }
    answer_.lower_bound = finished_ ? time : std::min(answer_.lower_bound, time);
  }

  const StageProblem& problem_;
  const StageSearchOptions& options_;
  Clock::time_point start_;
  StageAnswer answer_;
  double value_ = kInfinity;
  bool finished_ = true;
};

}  // namespace

StageAnswer searchStages(const StageProblem& problem, const StageSearchOptions& options) {
  validate(problem);
  return StageSearch(problem, options).run();
}

const char* toString(StageStatus status) {
  switch (status) {
    case StageStatus::kOptimal:
      return "optimal";
    case StageStatus::kFeasible:
      return "feasible";
    case StageStatus::kInfeasible:
      return "infeasible";
    case StageStatus::kTimeLimit:
      return "time_limit";
  }
  return "unknown";
}

}  // namespace shardwright
