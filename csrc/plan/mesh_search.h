// The search for the cheapest plan of one mesh shape that fits the memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "intraop/model.h"
#include "intraop/solve.h"
#include "mesh/cluster.h"
#include "plan/certificate.h"
#include "plan/planner.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

class MeshSearch {
 public:
  // Keeps references to all but the shape; the seconds of each phase are added to `result`.
  MeshSearch(const ShardedGraph& graph, const Cluster& cluster, const PlanOptions& options,
             std::vector<int> shape, std::optional<std::int64_t> limit, PlanResult& result);

  // Plans without regard to memory, in at most so many seconds. True when the plan fits all the
  // same and is therefore the answer; bound() holds for every plan of the mesh in any case.
  bool runUnlimited(double seconds);

  // Whether certified choices within the limit were found; where not, certified() is the plan that
  // needs least memory.
  bool run(double seconds);

  const StagePlan& stage() const { return stage_; }
  const CertifiedCost& certified() const { return certified_; }
  const Problem& problem() const {
    return memory_model_ ? memory_model_->problem() : unlimited_model_->problem();
  }
  std::int64_t bound() const { return bound_.value_or(0); }
  bool interrupted() const { return interrupted_; }
  // Proven: no plan of the mesh is valid, whatever its memory.
  bool isProvenInvalid() const { return proven_invalid_; }
  // Proven: no plan of the mesh fits the limit.
  bool isProvenTooLarge() const { return proven_invalid_ || proven_too_large_; }

 private:
  using Clock = std::chrono::steady_clock;

  void setTime(double seconds);
  double secondsLeft() const;
  void checkPrice(std::int64_t claimed) const;
  bool fits() const { return !limit_ || certified_.peak.bytes <= *limit_; }
  Answer solveUnder(std::optional<std::int64_t> limit, double seconds);
  const Model& modelUnder(std::optional<std::int64_t> limit);
  const Model& memoryModel();
  void poll();
  void certifyChoice(const Model& model, const std::vector<std::int32_t>& choice,
                     std::optional<std::int64_t> bound, bool out_of_time);
  void certifyStage(std::optional<std::int64_t> bound, bool out_of_time);
  bool useSmallestPeak();
  void raiseLimit(std::int64_t fitting);

  const ShardedGraph& graph_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  std::optional<std::int64_t> limit_;
  DeviceMesh mesh_;
  PlanResult& result_;
  Clock::time_point deadline_;
  ModelOptions model_options_;
  std::unique_ptr<Model> unlimited_model_;
  std::unique_ptr<Model> memory_model_;         // null until a limit binds
  std::optional<std::int64_t> bound_;           // of all plans of the mesh, whatever their memory
  std::optional<std::int64_t> bound_in_limit_;  // of the plans within the limit
  std::set<std::int64_t> exceeding_;  // limits of the model that gave no plan within limit_
  StagePlan stage_;
  CertifiedCost certified_;
  std::atomic<bool> stop_ = false;
  bool interrupted_ = false;
  bool proven_invalid_ = false;
  bool proven_too_large_ = false;
};

}  // namespace shardwright
