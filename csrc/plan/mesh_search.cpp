#include "plan/mesh_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "intraop/forced_specs.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxTighteningRounds = 8;
constexpr int kMaxRaisingRounds = 6;
constexpr double kSmallestPeakRoundSeconds = 1;
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
        forced.insert_or_assign(name,
                                parseSpec(graph.atoms(forcedValue(graph.graph(), NodeId(index))),
                                          demanded->second, num_axes));
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

}  // namespace

MeshSearch::MeshSearch(const ShardedGraph& graph, const Cluster& cluster,
                       const PlanOptions& options, std::vector<int> shape,
                       std::optional<std::int64_t> limit, PlanResult& result)
    : graph_(graph),
      cluster_(cluster),
      options_(options),
      limit_(limit),
      mesh_(std::move(shape), cluster),
      result_(result) {
  const double microbatches = options.num_microbatches;
  model_options_.phase_weight = {microbatches, microbatches, 1};
  model_options_.microbatches_in_flight = options.microbatches_in_flight;
  model_options_.shard_all_products = options.shard_all_products;
  model_options_.forced = parseForced(graph, options, mesh_.numAxes());
  ModelOptions unlimited = model_options_;
  unlimited.ignore_memory = true;
  const PhaseTimer timer(result.seconds, "model");
  unlimited_model_ = std::make_unique<Model>(graph, mesh_, cluster, unlimited);
}

bool MeshSearch::runUnlimited(double seconds) {
  setTime(seconds);
  const Answer answer = solveUnder(std::nullopt, secondsLeft());
  bound_ = answer.lower_bound;
  proven_invalid_ = answer.status == SolveStatus::kInfeasible;
  if (interrupted_ || answer.choice.empty()) {
    return false;
  }
  certifyChoice(modelUnder(std::nullopt), answer.choice, bound_,
                answer.status == SolveStatus::kTimeLimit);
  checkPrice(answer.cost);
  return fits();
}

bool MeshSearch::run(double seconds) {
  setTime(seconds);
  std::optional<std::int64_t> limit = limit_;
  std::optional<std::int64_t> impossible;  // largest limit without a plan
  for (int round = 0; round < kMaxTighteningRounds; ++round) {
    // Half of what is left, where the limit may have to be tightened afterwards.
    const Answer answer = solveUnder(limit, limit ? secondsLeft() / 2 : secondsLeft());
    if (interrupted_) {
      return false;
    }
    if (round == 0) {
      bound_in_limit_ = std::max(answer.lower_bound, bound_);  // nullopt is less than any bound
      proven_too_large_ = answer.status == SolveStatus::kInfeasible;
    }
    if (answer.choice.empty()) {
      if (exceeding_.empty()) {
        break;
      }
      impossible = std::max(impossible.value_or(0), *limit);
    } else {
      certifyChoice(modelUnder(limit), answer.choice, bound_in_limit_,
                    answer.status == SolveStatus::kTimeLimit);
      checkPrice(answer.cost);
      if (fits()) {
        if (limit) {
          raiseLimit(*limit);
        }
        return true;
      }
      exceeding_.insert(*limit);
      limit = *limit - (certified_.peak.bytes - *limit_);
    }
    if (impossible && *limit <= *impossible) {
      limit = *impossible + (*exceeding_.begin() - *impossible) / 2;
    }
    if (*limit <= 0 || (impossible && *limit <= *impossible)) {
      break;
    }
  }
  return useSmallestPeak();
}

void MeshSearch::setTime(double seconds) {
  deadline_ = Clock::now() +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double MeshSearch::secondsLeft() const {
  return std::max(0.1, std::chrono::duration<double>(deadline_ - Clock::now()).count());
}

void MeshSearch::checkPrice(std::int64_t claimed) const {
  if (certified_.cost_units != claimed) {
    throw Error(ErrorKind::kInternal, "E931",
                "the search and the certificate price a plan differently.",
                {.values = {"search " + std::to_string(claimed) + ", certificate " +
                            std::to_string(certified_.cost_units) + " units of 1/1000 us"},
                 .advice = "report this with the model and the cluster"});
  }
}

Answer MeshSearch::solveUnder(std::optional<std::int64_t> limit, double seconds) {
  const Problem& problem = modelUnder(limit).problem();
  const PhaseTimer timer(result_.seconds, "solve");
  SolveOptions options;
  options.time_limit_s = std::max(0.1, seconds);
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

const Model& MeshSearch::modelUnder(std::optional<std::int64_t> limit) {
  return limit ? memoryModel() : *unlimited_model_;
}

// Made when a limit first asks for it.
const Model& MeshSearch::memoryModel() {
  if (!memory_model_) {
    const PhaseTimer timer(result_.seconds, "model");
    memory_model_ = std::make_unique<Model>(graph_, mesh_, cluster_, model_options_);
  }
  return *memory_model_;
}

void MeshSearch::poll() {
  if (options_.is_interrupted && !interrupted_ && options_.is_interrupted()) {
    interrupted_ = true;
    stop_ = true;
  }
}

void MeshSearch::certifyChoice(const Model& model, const std::vector<std::int32_t>& choice,
                               std::optional<std::int64_t> bound, bool out_of_time) {
  stage_ = model.stagePlan(choice);
  certifyStage(bound, out_of_time);
}

// `bound` must hold for the stage's plan: one under a limit says nothing of plans above it.
void MeshSearch::certifyStage(std::optional<std::int64_t> bound, bool out_of_time) {
  const PhaseTimer timer(result_.seconds, "certificate");
  CertifyOptions certify_options;
  certify_options.phase_weight = model_options_.phase_weight;
  certify_options.microbatches_in_flight = options_.microbatches_in_flight;
  certify_options.lower_bound = bound;
  certify_options.out_of_time = out_of_time;
  certified_ = certifyPlan(graph_, stage_, mesh_, cluster_, certify_options);
}

// The plan that needs least memory: fits, or is what the error reports. The smallest peak of the
// model comes first; it knows neither prices nor the transient copies that a certificate counts,
// so cheap plans within a little more than that peak often need less in the end. Those lie above
// the limit that `bound_in_limit_` was found under, until one turns out to fit.
bool MeshSearch::useSmallestPeak() {
  const Model& model = memoryModel();
  const PeakAnswer smallest = [&] {
    const PhaseTimer timer(result_.seconds, "solve");
    return minimizePeak(model.problem(), std::clamp(secondsLeft(), 1.0, 10.0), &stop_,
                        [this](const SolveProgress&) { poll(); });
  }();
  proven_invalid_ = proven_invalid_ || smallest.infeasible;
  proven_too_large_ = proven_too_large_ || (limit_ && smallest.bound_bytes > *limit_);
  if (smallest.choice.empty()) {
    return false;
  }
  certifyChoice(model, smallest.choice, bound_, false);
  std::int64_t model_peak_bytes = smallest.peak_bytes;
  bool out_of_time = false;
  for (const double room : {0.0, 0.01, 0.05, 0.2}) {
    if (interrupted_ || fits()) {
      break;
    }
    const StagePlan best_stage = stage_;
    const CertifiedCost best = certified_;
    const Answer answer = solveUnder(
        static_cast<std::int64_t>(std::ceil(static_cast<double>(smallest.peak_bytes) * (1 + room))),
        kSmallestPeakRoundSeconds);
    if (!answer.choice.empty()) {
      certifyChoice(model, answer.choice, bound_, false);
    }
    if (certified_.peak.bytes > best.peak.bytes) {
      stage_ = best_stage;
      certified_ = best;
    } else if (!answer.choice.empty()) {
      model_peak_bytes = answer.peak_bytes;
      out_of_time = answer.status == SolveStatus::kTimeLimit;
    }
  }
  if (!fits()) {
    return false;
  }
  certifyStage(bound_in_limit_, out_of_time);
  if (limit_) {
    raiseLimit(model_peak_bytes);
  }
  return true;
}

// From the plan that fits, found under the limit `fitting`, back up by bisection towards the least
// limit that exceeded, keeping the cheapest plan that fits: tightening by the whole excess gives up
// more than the copies it is for. No limit tried is above the user's, so bound_in_limit_ holds.
void MeshSearch::raiseLimit(std::int64_t fitting) {
  for (int round = 0; round < kMaxRaisingRounds && Clock::now() < deadline_; ++round) {
    const auto next = exceeding_.upper_bound(fitting);
    const std::int64_t ceiling = next == exceeding_.end() ? *limit_ + 1 : *next;
    if (certified_.certificate.gap <= options_.relative_gap || ceiling - fitting <= 1) {
      return;
    }
    const std::int64_t middle = fitting + (ceiling - fitting) / 2;
    const Answer answer = solveUnder(middle, secondsLeft() / 2);
    if (interrupted_) {
      return;
    }
    if (answer.choice.empty()) {
      exceeding_.insert(middle);
      continue;
    }
    const StagePlan best_stage = stage_;
    const CertifiedCost best = certified_;
    certifyChoice(memoryModel(), answer.choice, bound_in_limit_,
                  answer.status == SolveStatus::kTimeLimit);
    checkPrice(answer.cost);
    if (fits()) {
      fitting = middle;
    } else {
      exceeding_.insert(middle);
    }
    if (!fits() || certified_.cost_units >= best.cost_units) {
      stage_ = best_stage;
      certified_ = best;
    }
  }
}

}  // namespace shardwright
