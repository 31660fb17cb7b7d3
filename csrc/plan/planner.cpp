#include "plan/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "plan/infeasible.h"
#include "plan/mesh_search.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

void checkOptions(const PlanOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& value,
                         const std::string& advice) {
    throw Error(ErrorKind::kConfig, "E520", what, {.values = {"got: " + value}, .advice = advice});
  };
  if (options.num_microbatches < 1) {
    refuse("num_microbatches must be at least 1.", std::to_string(options.num_microbatches),
           "num_microbatches=1");
  }
  if (options.microbatches_in_flight < 1 ||
      options.microbatches_in_flight > options.num_microbatches) {
    refuse("microbatches_in_flight must be from 1 to num_microbatches.",
           std::to_string(options.microbatches_in_flight) + " of " +
               std::to_string(options.num_microbatches),
           "microbatches_in_flight=1, or what the schedule has in flight on the stage");
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
        time_limit_s_(options.time_limit_s),
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
    result_.plan.microbatches_in_flight = options.microbatches_in_flight;
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
      throwInfeasible({.mesh_shapes = shapes_,
                       .limit_bytes = limit_,
                       .smallest = smallest_,
                       .time_limit_s = time_limit_s_,
                       .microbatches_in_flight = result_.plan.microbatches_in_flight,
                       .is_proven_invalid = isProvenOfAll(&MeshSearch::isProvenInvalid),
                       .is_proven_too_large = isProvenOfAll(&MeshSearch::isProvenTooLarge)},
                      cluster_);
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

  bool isProvenOfAll(bool (MeshSearch::*proven)() const) const {
    return std::all_of(searches_.begin(), searches_.end(),
                       [&](const auto& search) { return ((*search).*proven)(); });
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
  double time_limit_s_;
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
