// From a step cut into layers and a cluster to pipeline stages: which layers, which devices, which
// logical mesh, how tensors lie between stages, and what is computed again in backward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "interop/priced_layers.h"
#include "interop/schedule.h"
#include "interop/stage_dp.h"
#include "mesh/cluster.h"
#include "mesh/submesh_shape.h"
#include "sharding/registry.h"

namespace shardwright {

// A step of one microbatch, each of its nodes in a layer (or in none: see kEveryLayer).
struct LayeredGraph {
  const Graph* graph = nullptr;
  std::vector<int> layer_of_node;
};

struct PipelineOptions {
  int num_microbatches = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  // Exactly so many stages; any number without.
  std::optional<int> num_stages;
  // Most bytes per device; nullopt: the cluster's memory, and no limit where that is 0.
  std::optional<std::int64_t> memory_limit_bytes;
  // What stages may hold by the tables, as a share of the limit: above 1 where their own plans,
  // which trade time for memory more finely, are hoped to fit. Prices of memory do not depend on
  // it.
  double memory_share = 1;
  // Shapes of submeshes; empty: those of Alpa, section 5.2 (powers of two of hosts only where all
  // would be more than 8, as in Alpa's published searches).
  std::vector<SubmeshShape> submeshes;
  // Most specs considered for a tensor at a boundary, per logical mesh.
  int max_specs = 4;
  // Most ways of a tensor to lie at a boundary considered per submesh, over all its logical meshes.
  int max_ports = 4;
  // As ModelOptions::shard_all_products.
  bool shard_all_products = false;
  // Whether E205 tells the memory limit that would do, which takes more searches.
  bool says_what_would_do = true;
  // For all of it, layers and stages.
  double time_limit_s = 60;
  // Filled with the tables of the plain step's layers, and read: a second search of the same step
  // does not price them again. See PricedLayers for what must be the same; null: kept by nobody.
  std::shared_ptr<PricedLayers> priced;
  // Asked now and then by the calling thread; true ends the search as the time limit does.
  std::function<bool()> is_interrupted;
};

// One stage of the answer. Times and bytes are those of the tables: planning the stage by itself
// gives the exact ones.
struct FoundStage {
  int begin = 0;  // layers [begin, end)
  int end = 0;
  SubmeshShape submesh;
  int first_device = 0;
  std::vector<int> mesh_shape;
  bool recomputed = false;
  int microbatches_in_flight = 1;
  double forward_us = 0;
  double backward_us = 0;
  double update_us = 0;
  std::int64_t memory_bytes = 0;
  // Specs (printed, by dim) of the values at the stage's two ends by node name of the whole graph:
  // activation and gradient, in front and behind.
  std::map<std::string, std::string> specs;
};

struct PipelineAnswer {
  StageStatus status = StageStatus::kTimeLimit;
  bool interrupted = false;
  std::vector<FoundStage> stages;  // none where the search ended before there were any
  double time_us = 0;         // sum of steps plus (B - 1) times the longest, see StageEvaluation
  double lower_bound_us = 0;  // no stages made from the tables take less
  double unlimited_us = 0;    // the same whatever their memory: equal where no limit matters
  int num_layer_classes = 0;
  std::int64_t num_kinds = 0;
  std::vector<std::pair<std::string, double>> seconds;  // layers, costs, tables, stages
};

// The stages of least time in the model of the tables. `recomputed` is the same step with every
// layer's forward computed again in backward (same layers); null: no stage may do so.
//
// Layers of one class are priced once per logical mesh, for all pairs of specs at their two ends
// (interop/layer_costs.h); ranges of layers are joined by min-plus products
// (interop/stage_costs.h); the search over stages, ports and variants is exact
// (interop/stage_dp.h). What the model leaves out: at most max_specs specs per boundary and mesh,
// and max_ports per submesh; activation and gradient lie alike; no pending sums at boundaries
// between layers; memory is that of a few prices of a byte, and the most transient bytes of any
// layer are added to what is held throughout.
//
// Ended by the time limit or an interrupt, it gives the best stages so far with a valid bound;
// while layers are priced there are none.
//
// Throws InfeasibleError [E205] when nothing fits, ProblemError [E221] for options that make no
// sense, ClusterError [E358] for an abstract cluster.
PipelineAnswer searchPipeline(const LayeredGraph& step, const LayeredGraph* recomputed,
                              const RuleRegistry& registry, const Cluster& cluster,
                              const PipelineOptions& options);

}  // namespace shardwright
