#include "plan/planner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
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
constexpr double kSmallestPeakRoundSeconds = 2;
// The search is to stay below 1 GiB, what it starts from included.
constexpr double kMaxEliminationBytes = 5e8;

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
             std::vector<int> shape, std::optional<std::int64_t> limit, PlanResult& result)
      : graph_(graph),
        cluster_(cluster),
        options_(options),
        limit_(limit),
        mesh_(std::move(shape), cluster),
        result_(result) {
    const double microbatches = options.num_microbatches;
    model_options_.phase_weight = {microbatches, microbatches, 1};
    model_options_.shard_all_products = options.shard_all_products;
    model_options_.forced = parseForced(graph, options, mesh_.numAxes());
    ModelOptions unlimited = model_options_;
    unlimited.ignore_memory = true;
    const PhaseTimer timer(result.seconds, "model");
    unlimited_model_ = std::make_unique<Model>(graph, mesh_, cluster, unlimited);
  }

  // Plans without regard to memory, in at most so many seconds. True when the plan fits all the
  // same and is therefore the answer; bound() holds for every plan of the mesh in any case.
  bool runUnlimited(double seconds) {
    setTime(seconds);
    const Answer answer = solveUnder(std::nullopt);
    bound_ = answer.lower_bound;
    if (interrupted_ || answer.choice.empty()) {
      return false;
    }
    certifyChoice(modelUnder(std::nullopt), answer.choice, bound_,
                  answer.status == SolveStatus::kTimeLimit);
    checkPrice(answer.cost);
    return !limit_ || certified_.peak.bytes <= *limit_;
  }

  // Whether certified choices within the limit were found; where not, certified() is the plan that
  // needs least memory.
  bool run(double seconds) {
    setTime(seconds);
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
        bound = std::max(answer.lower_bound, bound_);  // nullopt is less than any bound
      }
      if (answer.choice.empty()) {
        if (!exceeding) {
          break;
        }
        impossible = std::max(impossible.value_or(0), *limit);
      } else {
        certifyChoice(modelUnder(limit), answer.choice, bound,
                      answer.status == SolveStatus::kTimeLimit);
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
  const Problem& problem() const {
    return memory_model_ ? memory_model_->problem() : unlimited_model_->problem();
  }
  const std::vector<int>& shape() const { return mesh_.shape(); }
  std::int64_t bound() const { return bound_.value_or(0); }
  bool interrupted() const { return interrupted_; }

 private:
  void setTime(double seconds) {
    deadline_ = Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

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
    const Problem& problem = modelUnder(limit).problem();
    const PhaseTimer timer(result_.seconds, "solve");
    SolveOptions options;
    // Half of what is left, where the limit may have to be tightened afterwards.
    options.time_limit_s = limit ? std::max(0.1, secondsLeft() / 2) : secondsLeft();
    options.good_gap = options_.relative_gap;
    options.smallest_peak_time_s = 0;
    options.max_elimination_bytes = kMaxEliminationBytes;
    options.interrupt = &stop_;
    options.on_progress = [this](const SolveProgress& progress) {
      poll();
      if (options_.on_progress) options_.on_progress(progress);
    };
    poll();
    return solve(problem.withMemoryLimit(limit), options);
  }

  const Model& modelUnder(std::optional<std::int64_t> limit) {
    return limit ? memoryModel() : *unlimited_model_;
  }

  // Made when a limit first asks for it.
  const Model& memoryModel() {
    if (!memory_model_) {
      const PhaseTimer timer(result_.seconds, "model");
      memory_model_ = std::make_unique<Model>(graph_, mesh_, cluster_, model_options_);
    }
    return *memory_model_;
  }

  void poll() {
    if (options_.is_interrupted && !interrupted_ && options_.is_interrupted()) {
      interrupted_ = true;
      stop_ = true;
    }
  }

  void certifyChoice(const Model& model, const std::vector<std::int32_t>& choice,
                     std::optional<std::int64_t> bound, bool out_of_time) {
    stage_ = model.stagePlan(choice);
    certifyStage(bound, out_of_time);
  }

  // `bound` must hold for the stage's plan: one under a limit says nothing of plans above it.
  void certifyStage(std::optional<std::int64_t> bound, bool out_of_time) {
    const PhaseTimer timer(result_.seconds, "certificate");
    CertifyOptions certify_options;
    certify_options.phase_weight = model_options_.phase_weight;
    certify_options.lower_bound = bound;
    certify_options.out_of_time = out_of_time;
    certified_ = certifyPlan(graph_, stage_, mesh_, cluster_, certify_options);
  }

  // The plan that needs least memory: fits, or is what the error reports. The smallest peak of the
  // model comes first; it knows neither prices nor the transient copies that a certificate counts,
  // so cheap plans within a little more than that peak often need less in the end. Those lie above
  // the limit that `bound` was found under, until one turns out to fit.
  bool useSmallestPeak(std::optional<std::int64_t> bound) {
    const Model& model = memoryModel();
    const PeakAnswer smallest = [&] {
      const PhaseTimer timer(result_.seconds, "solve");
      return minimizePeak(model.problem(), std::clamp(secondsLeft(), 1.0, 10.0), &stop_,
                          [this](const SolveProgress&) { poll(); });
    }();
    if (smallest.choice.empty()) {
      return false;
    }
    certifyChoice(model, smallest.choice, bound_, false);
    bool out_of_time = false;
    for (const double room : {0.0, 0.01, 0.05, 0.2}) {
      if (interrupted_ || !limit_ || certified_.peak.bytes <= *limit_) {
        break;
      }
      const StagePlan best_stage = stage_;
      const CertifiedCost best = certified_;
      setTime(kSmallestPeakRoundSeconds);
      const Answer answer = solveUnder(static_cast<std::int64_t>(
          std::ceil(static_cast<double>(smallest.peak_bytes) * (1 + room))));
      if (!answer.choice.empty()) {
        certifyChoice(model, answer.choice, bound_, false);
      }
      if (certified_.peak.bytes > best.peak.bytes) {
        stage_ = best_stage;
        certified_ = best;
      } else {
        out_of_time = answer.status == SolveStatus::kTimeLimit;
      }
    }
    if (limit_ && certified_.peak.bytes > *limit_) {
      return false;
    }
    certifyStage(bound, out_of_time);
    return true;
  }

  const ShardedGraph& graph_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  std::optional<std::int64_t> limit_;
  DeviceMesh mesh_;
  PlanResult& result_;
  Clock::time_point deadline_;
  ModelOptions model_options_;
  std::unique_ptr<Model> unlimited_model_;
  std::unique_ptr<Model> memory_model_;  // null until a limit binds
  std::optional<std::int64_t> bound_;    // of all plans of the mesh, whatever their memory
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
  if (!(options.relative_gap >= 0)) {
    refuse("relative_gap must be 0 or more.", std::to_string(options.relative_gap),
           "relative_gap=1e-4");
  }
  if (options.memory_limit_bytes && *options.memory_limit_bytes <= 0) {
    refuse("memory_limit must be positive.", std::to_string(*options.memory_limit_bytes) + " bytes",
           "memory_limit=\"14GiB\", or None for the memory of the cluster's devices");
  }
  if (!options.forced.empty() && !options.mesh_shape) {
    refuse("forced specs need a mesh.", "mesh=None", "mesh=(2, 4)");
  }
}

// All mesh shapes together: first each without regard to memory, which is quick and bounds what the
// shape can reach, then those that did not fit from the most promising on, until none is left whose
// bound is below the best plan.
class PlanSearch {
 public:
  PlanSearch(const ShardedGraph& graph, const Cluster& cluster, const PlanOptions& options)
      : cluster_(cluster),
        limit_(options.memory_limit_bytes),
        shapes_(options.mesh_shape ? std::vector<std::vector<int>>{*options.mesh_shape}
                                   : candidateMeshShapes(cluster.numDevices())),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(options.time_limit_s))) {
    if (!limit_ && cluster.memory_bytes > 0) {
      limit_ = cluster.memory_bytes;
    }
    result_.plan.graph_hash = options.graph_hash;
    result_.plan.cluster = cluster;
    result_.plan.num_microbatches = options.num_microbatches;
    for (const std::vector<int>& shape : shapes_) {
      result_.trials.push_back({shape, -1, "infeasible"});
      searches_.push_back(
          std::make_unique<MeshSearch>(graph, cluster, options, shape, limit_, result_));
    }
  }

  PlanResult run() {
    std::vector<std::size_t> remaining;
    const double parts = limit_ ? 2 : 1;
    for (std::size_t index = 0; index < searches_.size(); ++index) {
      const double share = secondsLeft() / parts / static_cast<double>(searches_.size() - index);
      const bool fits = searches_[index]->runUnlimited(share);
      if (searches_[index]->interrupted()) {
        return interrupted();
      }
      if (fits) {
        take(index);
      } else {
        remaining.push_back(index);
      }
    }
    std::stable_sort(remaining.begin(), remaining.end(), [&](std::size_t a, std::size_t b) {
      return searches_[a]->bound() < searches_[b]->bound();
    });
    for (std::size_t position = 0; position < remaining.size(); ++position) {
      const std::size_t index = remaining[position];
      if (best_cost_ && searches_[index]->bound() >= *best_cost_) {
        result_.trials[index].status = "slower";
        continue;
      }
      const bool is_last = position + 1 == remaining.size();
      const bool fits = searches_[index]->run(secondsLeft() / (is_last ? 1 : 2));
      if (searches_[index]->interrupted()) {
        return interrupted();
      }
      if (fits) {
        take(index);
      } else {
        noteSmallestPeak(index);
      }
    }
    if (!best_cost_) {
      throwInfeasible(shapes_, limit_, smallest_, cluster_);
    }
    return std::move(result_);
  }

 private:
  double secondsLeft() const {
    return std::max(0.1, std::chrono::duration<double>(end_ - Clock::now()).count());
  }

  PlanResult interrupted() {
    result_.interrupted = true;
    return std::move(result_);
  }

  void take(std::size_t index) {
    const MeshSearch& search = *searches_[index];
    const CertifiedCost& certified = search.certified();
    result_.trials[index].status = certified.certificate.status;
    result_.trials[index].cost_us = certified.certificate.cost_us;
    if (!best_cost_ || certified.cost_units < *best_cost_) {
      best_cost_ = certified.cost_units;
      result_.plan.stages = {search.stage()};
      result_.plan.certificate = certified.certificate;
      result_.num_nodes = static_cast<std::int64_t>(search.problem().numNodes());
      result_.num_edges = static_cast<std::int64_t>(search.problem().edges().size());
    }
  }

  void noteSmallestPeak(std::size_t index) {
    const CertifiedCost& certified = searches_[index]->certified();
    if (certified.peak.bytes > 0 && (!smallest_ || certified.peak.bytes < smallest_->peak.bytes)) {
      smallest_ = SmallestPeak{shapes_[index], certified.peak, certified.largest_tensor};
    }
  }

  const Cluster& cluster_;
  std::optional<std::int64_t> limit_;
  std::vector<std::vector<int>> shapes_;
  Clock::time_point end_;
  PlanResult result_;
  std::vector<std::unique_ptr<MeshSearch>> searches_;
  std::optional<std::int64_t> best_cost_;
  std::optional<SmallestPeak> smallest_;
};

}  // namespace

PlanResult planStep(const ShardedGraph& graph, const Cluster& cluster, const PlanOptions& options) {
  checkOptions(options);
  return PlanSearch(graph, cluster, options).run();
}

}  // namespace shardwright
