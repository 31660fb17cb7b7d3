#include "plan/certificate.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "cost/compute.h"
#include "plan/memory_timeline.h"
#include "plan/validate.h"
#include "sharding/reshard.h"

namespace shardwright {
namespace {

constexpr double kUnitsPerMicrosecond = 1000;
constexpr int kTimelineSamples = 160;

std::int64_t toUnits(double us) { return std::llround(us * kUnitsPerMicrosecond); }

// Share of V that a ring moves per device (Alpa, section 4.2).
double ringFactor(StepKind kind, double num_ranks) {
  switch (kind) {
    case StepKind::kAllGather:
    case StepKind::kReduceScatter:
      return (num_ranks - 1) / num_ranks;
    case StepKind::kAllReduce:
      return 2 * (num_ranks - 1) / num_ranks;
    case StepKind::kAllToAll:
      return (num_ranks - 1) / (num_ranks * num_ranks);
    case StepKind::kSlice:
    case StepKind::kMask:
      break;
  }
  return 0;
}

bool communicates(StepKind kind) { return kind != StepKind::kSlice && kind != StepKind::kMask; }

std::string describeTensor(const Graph& graph, ValueRef value) {
  const Node& node = graph.node(value.node);
  const TensorMeta& meta = graph.meta(value);
  std::string text = node.input ? node.input->name : node.name;
  text += std::string(" ") + dtypeName(meta.dtype) + "[";
  for (std::size_t dim = 0; dim < meta.shape.size(); ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string(meta.shape[dim]);
  }
  text += "]";
  if (!node.source.empty()) {
    text += ", " + node.source;
  }
  return text;
}

class Pricing {
 public:
  Pricing(const ShardedGraph& graph, const StagePlan& stage, const DeviceMesh& mesh,
          const Cluster& cluster, const CertifyOptions& options)
      : graph_(graph), stage_(stage), mesh_(mesh), cluster_(cluster), options_(options) {}

  void addOps(CertifiedCost& result) {
    for (const OpChoice& choice : stage_.ops) {
      const Strategy strategy = checkedStrategy(graph_, stage_.mesh_shape, choice);
      const double us = computeCostUs(graph_, choice.node, strategy, stage_.mesh_shape, cluster_) *
                        weightOf(graph_.graph().node(choice.node).phase);
      result.certificate.compute_us += us;
      charge(result, choice.node, graph_.graph().node(choice.node).phase, us);
      result.cost_units = checkedAdd(result.cost_units, toUnits(us));
    }
  }

  void addConversions(const std::vector<ConversionEvent>& events, CertifiedCost& result) {
    for (const ConversionEvent& event : events) {
      const DType dtype = graph_.graph().meta(event.value).dtype;
      const auto steps = planReshard(graph_.atoms(event.value), dtype, event.from, event.to, mesh_);
      const double weight = weightOf(event.phase);
      double us = 0;
      for (const ReshardStep& step : *steps) {
        us += step.cost_us;
        if (communicates(step.kind)) {
          CollectiveCount& count = result.certificate.collectives[stepKindName(step.kind)];
          const double bytes = static_cast<double>(step.bytes);
          ++count.count;
          count.bytes += bytes * weight;
          count.ring_bytes_per_device +=
              ringFactor(step.kind,
                         static_cast<double>(mesh_.shape()[static_cast<std::size_t>(step.axis)])) *
              bytes * weight;
          count.cost_us += step.cost_us * weight;
        }
      }
      result.certificate.communication_us += us * weight;
      charge(result, event.node, event.phase, us * weight);
      result.cost_units = checkedAdd(result.cost_units, toUnits(us * weight));
    }
  }

 private:
  static void charge(CertifiedCost& result, NodeId node, Phase phase, double us) {
    result.certificate.phase_us[static_cast<std::size_t>(phase)] += us;
    if (node.isValid()) {
      result.node_us[node.index()] += us;
    }
  }

  double weightOf(Phase phase) const {
    return options_.phase_weight[static_cast<std::size_t>(phase)];
  }

  const ShardedGraph& graph_;
  const StagePlan& stage_;
  const DeviceMesh& mesh_;
  const Cluster& cluster_;
  const CertifyOptions& options_;
};

void judge(const CertifyOptions& options, CertifiedCost& result) {
  Certificate& certificate = result.certificate;
  certificate.cost_us = certificate.compute_us + certificate.communication_us;
  if (!options.lower_bound) {
    certificate.lower_bound_us = 0;
    certificate.gap = result.cost_units > 0 ? 1 : 0;
    certificate.status = options.out_of_time ? "time_limit" : "feasible";
    return;
  }
  if (*options.lower_bound > result.cost_units) {
    throw Error(ErrorKind::kInternal, "E930", "the claimed bound is above the cost of the plan.",
                {.values = {"bound " + std::to_string(*options.lower_bound) + ", cost " +
                            std::to_string(result.cost_units) + " units"},
                 .advice = "report this with the model and the cluster"});
  }
  if (*options.lower_bound == result.cost_units) {
    certificate.lower_bound_us = certificate.cost_us;
    certificate.gap = 0;
    certificate.status = "optimal";
    return;
  }
  certificate.lower_bound_us = std::min(
      certificate.cost_us, static_cast<double>(*options.lower_bound) / kUnitsPerMicrosecond);
  certificate.gap = static_cast<double>(result.cost_units - *options.lower_bound) /
                    static_cast<double>(result.cost_units);
  certificate.status = options.out_of_time ? "time_limit" : "feasible";
}

}  // namespace

CertifiedCost certifyPlan(const ShardedGraph& graph, const StagePlan& stage, const DeviceMesh& mesh,
                          const Cluster& cluster, const CertifyOptions& options) {
  checkCoverage(graph, stage);
  CertifiedCost result;
  result.node_us.resize(graph.graph().nodes().size());
  Pricing pricing(graph, stage, mesh, cluster, options);
  pricing.addOps(result);
  const Replay replay = replayPlan(graph, stage, mesh);
  pricing.addConversions(replay.conversions, result);
  judge(options, result);
  const WaitingMicrobatches waiting =
      waitingMicrobatches(graph.graph(), replay, options.microbatches_in_flight);
  result.peak = peakMemory(replay, waiting);
  result.certificate.peak_memory_bytes = result.peak.bytes;
  result.certificate.at_peak = result.peak.by_kind;
  result.certificate.memory_timeline =
      memoryTimeline(graph.graph(), replay, waiting, kTimelineSamples);
  const NodeId node = replay.moments[static_cast<std::size_t>(result.peak.moment)];
  result.certificate.peak_node = node.isValid() ? graph.graph().node(node).name : "inputs";
  if (result.peak.largest >= 0) {
    const Buffer& buffer = replay.buffers[static_cast<std::size_t>(result.peak.largest)];
    result.largest_tensor = describeTensor(graph.graph(), buffer.value);
  }
  return result;
}

}  // namespace shardwright
