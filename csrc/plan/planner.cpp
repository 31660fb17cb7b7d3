#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "intraop/model.h"
#include "intraop/solve.h"
#include "plan/certificate.h"
#include "plan/infeasible.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxTighteningRounds = 8;

// Adds the seconds it lives to one phase.
class PhaseTimer {
 public:
  PhaseTimer(std::vector<std::pair<std::string, double>>& seconds, const std::string& phase)
      : start_(Clock::now()) {
    auto entry = std::find_if(seconds.begin(), seconds.end(),
                              [&](const auto& known) { return known.first == phase; });
    if (entry == seconds.end()) {
      seconds.emplace_back(phase, 0.0);
      entry = seconds.end() - 1;
    }
    index_ = static_cast<std::size_t>(entry - seconds.begin());
    seconds_ = &seconds;
  }
  ~PhaseTimer() {
    (*seconds_)[index_].second += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  Clock::time_point start_;
  std::vector<std::pair<std::string, double>>* seconds_;
  std::size_t index_;
};

std::map<std::string, ShardingSpec> parseForced(const ShardedGraph& graph,
                                                const PlanOptions& options, int num_axes) {
  std::map<std::string, ShardingSpec> forced;
  for (std::size_t index = 0; index < graph.graph().nodes().size(); ++index) {
    const Node& node = graph.graph().nodes()[index];
    if (node.outputs.empty()) {
      continue;
    }
    for (const std::string& name : {node.name, node.input ? node.input->name : node.name}) {
      const auto demanded = options.forced.find(name);
      if (demanded != options.forced.end()) {
        forced.insert_or_assign(
            name, parseSpec(graph.atoms({NodeId(index), 0}), demanded->second, num_axes));
      }
    }
  }
  for (const auto& [name, text] : options.forced) {
    if (!forced.contains(name)) {
      throw Error(ErrorKind::kPlan, "E313",
                  "a sharding is forced on \"" + name + "\", which is not in the step.",
                  {.advice = "the name of an input (\"layers.0.weight\") or of a graph node"});
    }
  }
  return forced;
}

// The search on one mesh shape.
class MeshSearch {
 public:
  MeshSearch(const ShardedGraph& graph, const Cluster& cluster, const PlanOptions& options,
             std::vector<int> shape, std::optional<std::int64_t> limit, double time_limit_s,
             PlanResult& result)
      : graph_(graph),
        cluster_(cluster),
        options_(options),
        limit_(limit),
        mesh_(std::move(shape), cluster),
        result_(result),
        deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(time_limit_s))) {
    const double microbatches = options.num_microbatches;
    model_options_.phase_weight = {microbatches, microbatches, 1};
    model_options_.shard_all_products = options.shard_all_products;
    model_options_.forced = parseForced(graph, options, mesh_.numAxes());
    const PhaseTimer timer(result.seconds, "model");
    model_ = std::make_unique<Model>(graph, mesh_, cluster, model_options_);
  }

  // Whether certified choices within the limit were found; where not, certified() is the plan that
  // needs least memory.
  bool run() {
    std::optional<std::int64_t> limit = limit_;
    std::optional<std::int64_t> bound;
    std::optional<std::int64_t> exceeding;   // least limit whose plan turned out too large
    std::optional<std::int64_t> impossible;  // largest limit without a plan
    for (int round = 0; round < kMaxTighteningRounds; ++round) {
      const Answer answer = solveUnder(limit);
      if (interrupted_) {
        return false;
      }
      if (round == 0) {
        bound = answer.lower_bound;
      }
      if (answer.choice.empty()) {
        if (!exceeding) {
          break;
        }
        impossible = std::max(impossible.value_or(0), *limit);
      } else {
        certifyChoice(answer.choice, bound, answer.status == SolveStatus::kTimeLimit);
        checkPrice(answer.cost);
        if (!limit_ || certified_.peak.bytes <= *limit_) {
          return true;
        }
        exceeding = std::min(exceeding.value_or(*limit), *limit);
        limit = *limit - (certified_.peak.bytes - *limit_);
      }
      if (impossible && *limit <= *impossible) {
        limit = *impossible + (*exceeding - *impossible) / 2;
      }
      if (*limit <= 0 || (impossible && *limit <= *impossible)) {
        break;
      }
    }
    return useSmallestPeak(bound);
  }

  const StagePlan& stage() const { return stage_; }
  const CertifiedCost& certified() const { return certified_; }
  const Problem& problem() const { return model_->problem(); }
  bool interrupted() const { return interrupted_; }

 private:
  double secondsLeft() const {
    return std::max(0.1, std::chrono::duration<double>(deadline_ - Clock::now()).count());
  }

  void checkPrice(std::int64_t claimed) const {
    if (certified_.cost_units != claimed) {
      throw Error(ErrorKind::kInternal, "E931",
                  "the search and the certificate price a plan differently.",
                  {.values = {"search " + std::to_string(claimed) + ", certificate " +
                              std::to_string(certified_.cost_units) + " units of 1/1000 us"},
                   .advice = "report this with the model and the cluster"});
    }
  }

  Answer solveUnder(std::optional<std::int64_t> limit) {
    const PhaseTimer timer(result_.seconds, "solve");
    SolveOptions options;
    // Half of what is left, where the limit may have to be tightened afterwards.
    options.time_limit_s = limit ? std::max(0.1, secondsLeft() / 2) : secondsLeft();
    options.smallest_peak_time_s = 0;
    options.interrupt = &stop_;
    options.on_progress = [this](const SolveProgress&) { poll(); };
    poll();
    return solve(model_->problem().withMemoryLimit(limit), options);
  }

  void poll() {
    if (options_.is_interrupted && !interrupted_ && options_.is_interrupted()) {
      interrupted_ = true;
      stop_ = true;
    }
  }

  void certifyChoice(const std::vector<std::int32_t>& choice, std::optional<std::int64_t> bound,
                     bool out_of_time) {
    const PhaseTimer timer(result_.seconds, "certificate");
    stage_ = model_->stagePlan(choice);
    CertifyOptions certify_options;
    certify_options.phase_weight = model_options_.phase_weight;
    certify_options.lower_bound = bound;
    certify_options.out_of_time = out_of_time;
    certified_ = certifyPlan(graph_, stage_, mesh_, cluster_, certify_options);
  }

  // The plan that needs least memory: fits, or is what the error reports.
  bool useSmallestPeak(std::optional<std::int64_t> bound) {
    const PeakAnswer smallest = [&] {
      const PhaseTimer timer(result_.seconds, "solve");
      return minimizePeak(model_->problem(), std::clamp(secondsLeft(), 1.0, 10.0), &stop_);
    }();
    if (smallest.choice.empty()) {
      return false;
    }
    certifyChoice(smallest.choice, bound, false);
    return !limit_ || certified_.peak.bytes <= *limit_;
  }

  const ShardedGraph& graph_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  std::optional<std::int64_t> limit_;
  DeviceMesh mesh_;
  PlanResult& result_;
  Clock::time_point deadline_;
  ModelOptions model_options_;
  std::unique_ptr<Model> model_;
  StagePlan stage_;
  CertifiedCost certified_;
  std::atomic<bool> stop_ = false;
  bool interrupted_ = false;
};

void checkOptions(const PlanOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& value,
                         const std::string& advice) {
    throw Error(ErrorKind::kConfig, "E520", what, {.values = {"got: " + value}, .advice = advice});
  };
  if (options.num_microbatches < 1) {
    refuse("num_microbatches must be at least 1.", std::to_string(options.num_microbatches),
           "num_microbatches=1");
  }
  if (!(options.time_limit_s > 0) || !std::isfinite(options.time_limit_s)) {
    refuse("time_limit_s must be a positive number of seconds.",
           std::to_string(options.time_limit_s), "time_limit_s=60");
  }
  if (options.memory_limit_bytes && *options.memory_limit_bytes <= 0) {
    refuse("memory_limit must be positive.", std::to_string(*options.memory_limit_bytes) + " bytes",
           "memory_limit=\"14GiB\", or None for the memory of the cluster's devices");
  }
  if (!options.forced.empty() && !options.mesh_shape) {
    refuse("forced specs need a mesh.", "mesh=None", "mesh=(2, 4)");
  }
}

}  // namespace

std::string bytesText(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    return std::to_string(bytes) + " B";
  }
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

PlanResult planStep(const ShardedGraph& graph, const Cluster& cluster, const PlanOptions& options) {
  checkOptions(options);
  std::optional<std::int64_t> limit = options.memory_limit_bytes;
  if (!limit && cluster.memory_bytes > 0) {
    limit = cluster.memory_bytes;
  }
  const std::vector<std::vector<int>> shapes =
      options.mesh_shape ? std::vector<std::vector<int>>{*options.mesh_shape}
                         : candidateMeshShapes(cluster.numDevices());
  PlanResult result;
  result.plan.graph_hash = options.graph_hash;
  result.plan.cluster = cluster;
  result.plan.num_microbatches = options.num_microbatches;
  std::optional<std::int64_t> best_cost;
  std::optional<SmallestPeak> smallest;
  double time_left_s = options.time_limit_s;
  for (std::size_t index = 0; index < shapes.size(); ++index) {
    const auto start = Clock::now();
    const double share_s = time_left_s / static_cast<double>(shapes.size() - index);
    MeshSearch search(graph, cluster, options, shapes[index], limit, share_s, result);
    const bool fits = search.run();
    time_left_s -= std::chrono::duration<double>(Clock::now() - start).count();
    if (search.interrupted()) {
      result.interrupted = true;
      return result;
    }
    const CertifiedCost& certified = search.certified();
    MeshTrial& trial = result.trials.emplace_back();
    trial.mesh_shape = shapes[index];
    trial.status = fits ? certified.certificate.status : "infeasible";
    if (!fits) {
      if (certified.peak.bytes > 0 && (!smallest || certified.peak.bytes < smallest->peak.bytes)) {
        smallest = SmallestPeak{shapes[index], certified.peak, certified.largest_tensor};
      }
      continue;
    }
    trial.cost_us = certified.certificate.cost_us;
    if (!best_cost || certified.cost_units < *best_cost) {
      best_cost = certified.cost_units;
      result.plan.stages = {search.stage()};
      result.plan.certificate = certified.certificate;
      result.num_nodes = static_cast<std::int64_t>(search.problem().numNodes());
      result.num_edges = static_cast<std::int64_t>(search.problem().edges().size());
    }
  }
  if (!best_cost) {
    throwInfeasible(shapes, limit, smallest, cluster);
  }
  return result;
}

}  // namespace shardwright
