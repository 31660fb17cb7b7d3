// From a step graph and a cluster to a certified plan: the whole intra-operator search.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intraop/solve.h"
#include "mesh/cluster.h"
#include "plan/plan.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

struct PlanOptions {
  // Shape of the device mesh; nullopt tries every candidate of the cluster (one and two axes) and
  // keeps the fastest.
  std::optional<std::vector<int>> mesh_shape;
  // Most bytes per device; nullopt: the cluster's memory, and no limit where that is 0.
  std::optional<std::int64_t> memory_limit_bytes;
  // Specs demanded for inputs or nodes, in printed form ("S0 R"), by name. Needs mesh_shape.
  std::map<std::string, std::string> forced;
  // Forward and backward run this often per step, the update once.
  int num_microbatches = 1;
  // The step is a pipeline stage that has so many microbatches between their forward and their
  // backward at once (interop/schedule.h, microbatchesInFlight); counts in the memory alone.
  int microbatches_in_flight = 1;
  // Wall-clock seconds for the search over all mesh shapes together.
  double time_limit_s = 60;
  // Once the gap is at most this, no long search is made for the rest; 0 always asks for a proof.
  double relative_gap = 1e-4;
  // No product may leave a mesh axis idle; for meshes where compute costs nothing.
  bool shard_all_products = false;
  std::string graph_hash;
  // Polled several times per second; true stops the search with PlanResult::interrupted.
  std::function<bool()> is_interrupted;
  // Told about the running search of one mesh shape at most ten times per second; costs are in
  // thousandths of a microsecond.
  std::function<void(const SolveProgress&)> on_progress;
};

// What became of one mesh shape.
struct MeshTrial {
  std::vector<int> mesh_shape;
  double cost_us = -1;  // -1: no plan
  std::string status;   // of the certificate; "infeasible"; "slower": bounded above the best plan
};

struct PlanResult {
  Plan plan;
  std::vector<MeshTrial> trials;
  std::vector<std::pair<std::string, double>> seconds;  // model, solve, certificate
  std::int64_t num_nodes = 0;                           // of the integer program of the plan's mesh
  std::int64_t num_edges = 0;
  bool interrupted = false;
};

// The fastest plan found that fits. Every candidate mesh shape is modelled, solved and certified by
// itself, first without regard to memory; under the memory limit only those whose bound is below
// the best plan. The certificate's cost must equal the solver's to the unit (InternalError [E931]
// otherwise), and where its peak, which counts copies made for single consumers too, exceeds the
// limit, the search is repeated under a limit tightened by the excess, then raised again by
// bisection while that gives a cheaper plan that fits.
//
// Throws InfeasibleError [E203] with the smallest peak that was found when nothing fits (proven or
// not, see plan/infeasible.h), [E204] when no valid choice was found whatever the memory,
// ConfigError [E520] for options that make no sense, PlanError for forced specs that are not
// possible.
PlanResult planStep(const ShardedGraph& graph, const Cluster& cluster, const PlanOptions& options);

}  // namespace shardwright
