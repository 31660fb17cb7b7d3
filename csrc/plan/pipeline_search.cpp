#include "plan/pipeline_search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "base/error.h"
#include "interop/boundary_specs.h"
#include "interop/layer_costs.h"
#include "interop/layer_graphs.h"
#include "interop/search_stop.h"
#include "interop/stage_infeasible.h"
#include "interop/stage_tables.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

// More shapes than this are thinned out to powers of two of hosts.
constexpr std::size_t kMostShapes = 8;
// Shares of the step's time that filling the memory is taken to cost: no price, one at which memory
// decides between ways of about equal time, and one at which it decides alone.
constexpr double kPriceShares[] = {0, 0.3, 10};

constexpr std::chrono::milliseconds kHeartbeat{50};
// Of one table of a layer class, see LayerCostOptions.
constexpr double kMaxWork = 5e7;

// As many devices of the cluster as a submesh has.
Cluster partOf(const Cluster& cluster, const SubmeshShape& shape) {
  Cluster part = cluster;
  part.num_hosts = shape.num_hosts;
  part.devices_per_host = shape.devices_per_host;
  return part;
}

// Layers with and without recomputation, whose classes together make one class.
struct LayerVariants {
  LayerGraphs plain;
  std::optional<LayerGraphs> recomputed;
  std::vector<int> class_of_layer;
  std::vector<std::pair<int, int>> classes;  // class in each variant
};

LayerVariants layersOf(const LayeredGraph& step, const LayeredGraph* recomputed,
                       bool splits_backward) {
  LayerVariants layers{
      makeLayerGraphs(*step.graph, step.layer_of_node, splits_backward), {}, {}, {}};
  if (recomputed != nullptr) {
    layers.recomputed =
        makeLayerGraphs(*recomputed->graph, recomputed->layer_of_node, splits_backward);
  }
  std::map<std::pair<int, int>, int> known;
  for (std::size_t layer = 0; layer < layers.plain.layers.size(); ++layer) {
    const int second = layers.recomputed ? layers.recomputed->layers.at(layer).layer_class : -1;
    const std::pair<int, int> both = {layers.plain.layers[layer].layer_class, second};
    const auto [found, is_new] = known.try_emplace(both, static_cast<int>(known.size()));
    if (is_new) layers.classes.push_back(both);
    layers.class_of_layer.push_back(found->second);
  }
  return layers;
}

class PipelineSearch {
 public:
  PipelineSearch(const LayeredGraph& step, const LayeredGraph* recomputed,
                 const RuleRegistry& registry, const Cluster& cluster,
                 const PipelineOptions& options)
      : cluster_(cluster),
        options_(options),
        stop_(options.time_limit_s, options.is_interrupted),
        limit_(options.memory_limit_bytes) {
    if (!limit_ && cluster.memory_bytes > 0) limit_ = cluster.memory_bytes;
    submeshes_ = options.submeshes;
    if (submeshes_.empty()) {
      submeshes_ = candidateSubmeshes(cluster.num_hosts, cluster.devices_per_host);
      if (submeshes_.size() > kMostShapes) {
        submeshes_ = candidateSubmeshes(cluster.num_hosts, cluster.devices_per_host, true);
      }
    }
    layers_ = layersOf(step, recomputed, options.schedule == ScheduleKind::kZeroBubble);
    const LayerCostOptions costs{.num_microbatches = options.num_microbatches,
                                 .max_specs = options.max_specs,
                                 .max_work = kMaxWork,
                                 .shard_all_products = options.shard_all_products,
                                 .is_stopped = [this] { return stop_(); }};
    plain_costs_ = std::make_unique<LayerCosts>(layers_.plain, registry, costs);
    if (layers_.recomputed) {
      recomputed_costs_ = std::make_unique<LayerCosts>(*layers_.recomputed, registry, costs);
    }
    answer_.num_layer_classes = static_cast<int>(layers_.classes.size());
    note("layers");
  }

  PipelineAnswer run() {
    const std::vector<StageMesh> meshes = allMeshes();
    note("costs");
    const auto is_missing = [](const StageMesh& mesh) { return mesh.tables.empty(); };
    if (std::ranges::any_of(meshes, is_missing)) return unfinished();
    const LayerSequences sequences(layers_.class_of_layer);
    StageTables tables(
        sequences, boundaryDims(), meshes, submeshes_, boundaryTensors(), cluster_,
        {.num_microbatches = options_.num_microbatches,
         .memory_limit_bytes = shareOfLimit(),
         .num_prices = numPrices(),
         .max_ports = static_cast<std::size_t>(std::max(1, options_.max_ports)),
         .step_transfers = stepTransfers(),
         .passing_values = passingValues(layers_.plain, plain_costs_->keptReceived()),
         .recomputed_passing_values =
             layers_.recomputed
                 ? passingValues(*layers_.recomputed, recomputed_costs_->keptReceived())
                 : std::vector<PassingValue>(),
         .splits_backward = options_.schedule == ScheduleKind::kZeroBubble,
         .waits_for_transfers = options_.schedule != ScheduleKind::kGPipe});
    StageProblem& problem = tables.problem();
    problem.schedule = options_.schedule;
    problem.num_stages = options_.num_stages;
    answer_.num_kinds = static_cast<std::int64_t>(problem.kinds.size());
    note("tables");
    const StageAnswer found = searchStages(problem, stageOptions());
    if (found.status == StageStatus::kInfeasible) {
      StageSearchOptions explain = stageOptions();
      if (!options_.says_what_would_do) explain.time_limit_s = 0;
      throwStagesInfeasible(problem, explain);
    }
    answer_.status = found.status;
    answer_.time_us = found.evaluation.time;
    answer_.lower_bound_us = found.lower_bound;
    answer_.unlimited_us = found.lower_bound;
    if (problem.memory_limit_bytes) {
      problem.memory_limit_bytes.reset();
      answer_.unlimited_us = searchStages(problem, stageOptions()).lower_bound;
    }
    answer_.interrupted = stop_.isInterrupted();
    for (std::size_t index = 0; index < found.stages.size(); ++index) {
      answer_.stages.push_back(stageOf(tables, meshes, found, index));
    }
    place();
    note("stages");
    return std::move(answer_);
  }

 private:
  PipelineAnswer unfinished() {
    answer_.interrupted = stop_.isInterrupted();
    return std::move(answer_);
  }

  StageSearchOptions stageOptions() {
    return {.time_limit_s = stop_.secondsLeft(), .is_interrupted = [this] { return stop_(); }};
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void note(const char* phase) {
    const double now = seconds();
    answer_.seconds.emplace_back(phase, now - noted_);
    noted_ = now;
  }

  std::optional<std::int64_t> shareOfLimit() const {
    if (!limit_) return limit_;
    return static_cast<std::int64_t>(static_cast<double>(*limit_) * options_.memory_share);
  }

  std::size_t numPrices() const { return limit_ ? std::size(kPriceShares) : 1; }

  // The least time of the whole step on one device, shared out to all.
  double idealStepUs() const {
    const std::vector<LayerTable> tables = tablesOf({1, 1}, {1}, false, {MemoryPrice{}});
    if (tables.empty()) return 0;  // stopped: so are the tables that this is for
    double sum = 0;
    for (const Layer& layer : layers_.plain.layers) {
      double least = std::numeric_limits<double>::infinity();
      for (const LayerCost& cost :
           tables[static_cast<std::size_t>(layer.layer_class)].costs.front()) {
        if (!cost.possible) continue;
        least = std::min(least, options_.num_microbatches * (cost.forward_us + cost.backward_us) +
                                    cost.update_us);
      }
      sum += least;
    }
    return sum / cluster_.numDevices();
  }

  std::vector<MemoryPrice> prices() const {
    if (!limit_) return {MemoryPrice{}};
    const double per_byte = idealStepUs() / static_cast<double>(*limit_);
    std::vector<MemoryPrice> result;
    for (const double share : kPriceShares) {
      result.push_back({share * per_byte, share * per_byte * kTypicalInFlight});
    }
    return result;
  }

  std::vector<StageMesh> allMeshes() {
    std::vector<StageMesh> meshes;
    for (std::size_t submesh = 0; submesh < submeshes_.size(); ++submesh) {
      for (const std::vector<int>& shape : candidateMeshShapes(submeshes_[submesh].numDevices())) {
        meshes.push_back({static_cast<int>(submesh), shape, false, {}});
        if (recomputed_costs_) {
          meshes.push_back({static_cast<int>(submesh), shape, true, {}});
        }
      }
    }
    // Meshes are independent of each other; the largest, which take longest, come first.
    const std::vector<MemoryPrice> memory_prices = prices();
    std::atomic<std::size_t> num_begun = 0;
    const auto work = [&] {
      for (std::size_t k = num_begun++; k < meshes.size() && !stop_(); k = num_begun++) {
        fillTables(meshes[meshes.size() - 1 - k], memory_prices);
      }
    };
    std::vector<std::future<void>> workers;
    for (unsigned thread = 1; thread < std::thread::hardware_concurrency(); ++thread) {
      workers.push_back(std::async(std::launch::async, work));
    }
    work();
    // Only this thread hears of interrupts.
    for (std::future<void>& worker : workers) {
      while (worker.wait_for(kHeartbeat) != std::future_status::ready) stop_();
      worker.get();
    }
    return meshes;
  }

  std::vector<LayerTable> tablesOf(const SubmeshShape& submesh, const std::vector<int>& mesh_shape,
                                   bool recomputed, const std::vector<MemoryPrice>& prices) const {
    const auto make = [&] {
      const Cluster part = partOf(cluster_, submesh);
      const LayerCosts& costs = recomputed ? *recomputed_costs_ : *plain_costs_;
      return costs.tables(DeviceMesh(mesh_shape, part), part, prices);
    };
    const bool is_kept = options_.priced && !recomputed;
    return is_kept ? options_.priced->tables(submesh, mesh_shape, prices, make) : make();
  }

  // Tables by class of one variant become tables by class of both.
  void fillTables(StageMesh& mesh, const std::vector<MemoryPrice>& memory_prices) const {
    const std::vector<LayerTable> tables =
        tablesOf(submeshes_[static_cast<std::size_t>(mesh.submesh)], mesh.mesh_shape,
                 mesh.recomputed, memory_prices);
    if (tables.empty()) return;  // stopped
    for (const auto& [plain, again] : layers_.classes) {
      mesh.tables.push_back(tables[static_cast<std::size_t>(mesh.recomputed ? again : plain)]);
    }
  }

  std::size_t dimsAt(std::size_t layer) const {
    const LayerGraphs& graphs = layers_.plain;
    if (layer == 0 || layer >= graphs.layers.size() || !graphs.boundaries[layer].main) return 0;
    return graphs.whole->meta(*graphs.boundaries[layer].main).shape.size();
  }

  std::vector<BoundaryDims> boundaryDims() const {
    std::vector<BoundaryDims> dims(layers_.classes.size());
    for (std::size_t layer = 0; layer < layers_.class_of_layer.size(); ++layer) {
      dims[static_cast<std::size_t>(layers_.class_of_layer[layer])] = {dimsAt(layer),
                                                                       dimsAt(layer + 1)};
    }
    return dims;
  }

  std::vector<BoundaryTensors> boundaryTensors() const {
    const LayerGraphs& graphs = layers_.plain;
    std::vector<BoundaryTensors> tensors(graphs.layers.size());
    for (std::size_t layer = 1; layer < tensors.size(); ++layer) {
      const LayerBoundary& boundary = graphs.boundaries[layer];
      if (boundary.main) {
        // A scalar has no layouts to choose from: it goes with the other bytes.
        const TensorMeta& meta = graphs.whole->meta(*boundary.main);
        tensors[layer].shape = meta.shape;
        tensors[layer].dtype = meta.dtype;
      }
      if (boundary.gradient) {
        tensors[layer].has_gradient = true;
        tensors[layer].gradient_dtype = graphs.whole->meta(*boundary.gradient).dtype;
      }
    }
    for (const CrossingValue& value : graphs.crossings) {
      if (value.phase == Phase::kUpdate || value.targets.empty()) continue;
      const int low = std::min(value.source, value.targets.front());
      const int high = std::max(value.source, value.targets.back());
      for (int layer = low + 1; layer <= high; ++layer) {
        const auto index = static_cast<std::size_t>(layer);
        const LayerBoundary& boundary = graphs.boundaries[index];
        const bool is_priced = !tensors[index].shape.empty() &&
                               (value.value == boundary.main || value.value == boundary.gradient);
        if (is_priced) continue;
        tensors[index].other_bytes += value.bytes;
        ++(value.phase == Phase::kForward ? tensors[index].other_messages_there
                                          : tensors[index].other_messages_back);
      }
    }
    return tensors;
  }

  // Once per step and through one host's NIC, or one device's port where there is one host.
  std::vector<StepTransfer> stepTransfers() const {
    const Link& link = cluster_.num_hosts > 1 ? cluster_.inter_host : cluster_.intra_host;
    std::vector<StepTransfer> transfers;
    for (const CrossingValue& value : layers_.plain.crossings) {
      if (value.phase != Phase::kUpdate || value.targets.empty()) continue;
      const double time =
          static_cast<double>(value.bytes) / link.bandwidth_bytes_per_us + link.latency_us;
      transfers.push_back({value.source, value.targets, time});
    }
    return transfers;
  }

  FoundStage stageOf(const StageTables& tables, const std::vector<StageMesh>& meshes,
                     const StageAnswer& found, std::size_t index) const {
    const PlannedStage& planned = found.stages[index];
    const StageWay& way = tables.way(planned.begin, planned.end, planned.kind);
    const StageMesh& mesh = meshes[static_cast<std::size_t>(way.mesh)];
    FoundStage stage;
    stage.begin = planned.begin;
    stage.end = planned.end;
    stage.submesh = submeshes_[static_cast<std::size_t>(mesh.submesh)];
    stage.mesh_shape = mesh.mesh_shape;
    stage.recomputed = mesh.recomputed;
    stage.microbatches_in_flight =
        microbatchesInFlight(options_.schedule, static_cast<int>(found.stages.size() - index) - 1,
                             static_cast<int>(found.stages.size()), options_.num_microbatches);
    stage.forward_us = way.cost.forward_us;
    stage.backward_us = way.cost.backward_us;
    stage.update_us = way.cost.update_us;
    const StageBytes bytes = tables.bytes(planned.begin, planned.end, planned.kind);
    stage.memory_bytes = bytes.held + stage.microbatches_in_flight * bytes.per_microbatch;
    const auto table = [&](int layer) -> const LayerTable& {
      return mesh.tables[static_cast<std::size_t>(
          layers_.class_of_layer[static_cast<std::size_t>(layer)])];
    };
    addSpecs(stage, planned.begin, table(planned.begin).entry_specs[way.entry]);
    addSpecs(stage, planned.end, table(planned.end - 1).exit_specs[way.exit]);
    return stage;
  }

  void addSpecs(FoundStage& stage, int layer, const ShardingSpec& spec) const {
    const LayerGraphs& graphs = layers_.plain;
    const auto index = static_cast<std::size_t>(layer);
    if (layer == 0 || index >= graphs.layers.size() || spec.empty()) return;
    const LayerBoundary& boundary = graphs.boundaries[index];
    for (const std::optional<ValueRef>& value : {boundary.main, boundary.gradient}) {
      if (!value) continue;
      const TensorMeta& meta = graphs.whole->meta(*boundary.main);
      stage.specs[graphs.whole->node(value->node).name] = printSpec(wholeDims(meta.shape), spec);
    }
  }

  void place() {
    std::vector<SubmeshShape> shapes;
    for (const FoundStage& stage : answer_.stages) shapes.push_back(stage.submesh);
    const std::vector<int> first = placeSubmeshes(shapes, cluster_.devices_per_host);
    for (std::size_t index = 0; index < first.size(); ++index) {
      answer_.stages[index].first_device = first[index];
    }
  }

  const Cluster& cluster_;
  const PipelineOptions& options_;
  SearchStop stop_;
  std::optional<std::int64_t> limit_;
  Clock::time_point start_ = Clock::now();
  double noted_ = 0;
  std::vector<SubmeshShape> submeshes_;
  LayerVariants layers_;
  std::unique_ptr<LayerCosts> plain_costs_;
  std::unique_ptr<LayerCosts> recomputed_costs_;
  PipelineAnswer answer_;
};

}  // namespace

PipelineAnswer searchPipeline(const LayeredGraph& step, const LayeredGraph* recomputed,
                              const RuleRegistry& registry, const Cluster& cluster,
                              const PipelineOptions& options) {
  if (!cluster.abstract_axes.empty()) {
    throw Error(ErrorKind::kCluster, "E358", "stages cannot be searched on an abstract cluster.",
                {.values = {"cluster: " + cluster.name},
                 .advice = "a cluster with links, such as p3.16xlarge:8"});
  }
  return PipelineSearch(step, recomputed, registry, cluster, options).run();
}

}  // namespace shardwright
