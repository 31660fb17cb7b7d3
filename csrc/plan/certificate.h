// Cost and peak memory of a plan, recomputed from the graph and the choices alone: the one place
// that may call a plan optimal.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/cluster.h"
#include "plan/peak_memory.h"
#include "plan/plan.h"
#include "plan/replay.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

struct CertifyOptions {
  // How often each phase runs per step (Phase as index).
  std::array<double, 3> phase_weight = {1, 1, 1};
  // Microbatches of a pipeline stage that hold activations at once.
  int microbatches_in_flight = 1;
  // Proven bound in cost units, nullopt when the search has none.
  std::optional<std::int64_t> lower_bound;
  // Whether the search stopped for want of time.
  bool out_of_time = false;
};

struct CertifiedCost {
  std::int64_t cost_units = 0;  // each op and conversion rounded to a unit by itself
  Certificate certificate;
  std::vector<double> node_us;  // by node: of the op, and of conversions made for it
  PeakMemory peak;
  std::string largest_tensor;  // at the peak: "layers.0.up.weight f32[16384, 4096], train.py:41"
};

// Checks every choice against the rules (plan/validate.h), follows the plan through
// (plan/replay.h), prices each op and conversion once, and sweeps the memory, copies made for one
// consumer included. The status is "optimal" if and only if the cost equals the bound. Throws
// PlanError [E314] for choices that do not fit the graph, InternalError [E930] for a bound above
// the cost.
CertifiedCost certifyPlan(const ShardedGraph& graph, const StagePlan& stage, const DeviceMesh& mesh,
                          const Cluster& cluster, const CertifyOptions& options);

}  // namespace shardwright
