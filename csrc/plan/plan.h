// The answer: for each op its specs, for each shared value its conversions, and the certificate.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/cluster.h"
#include "sharding/placement.h"

namespace shardwright {

struct OpChoice {
  NodeId node;
  std::vector<ShardingSpec> operands;  // as Node::operands(); of the value consumed
  std::vector<ShardingSpec> outputs;
};

struct ConversionChoice {
  ValueRef value;  // root
  int group = 0;   // see ConversionPoint
  ShardingSpec spec;
  bool from_first = false;
};

// One pipeline stage: the nodes it runs and the mesh it runs on. A plan without pipelining has one.
struct StagePlan {
  std::vector<int> mesh_shape;
  std::vector<int> ranks;  // global ranks in mesh order
  std::vector<OpChoice> ops;
  std::vector<ConversionChoice> conversions;
};

struct CollectiveCount {
  std::int64_t count = 0;
  double bytes = 0;                  // sum of the V of the cost formula
  double ring_bytes_per_device = 0;  // sum of f(n) * V
  double cost_us = 0;
};

struct MemoryAtPeak {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;
  std::int64_t other = 0;  // buffers, batch, constants
  std::int64_t total() const { return parameters + gradients + optimizer + activations + other; }
};

// Bytes alive on one device at one moment of the step.
struct MemorySample {
  std::int64_t moment = 0;  // counts ops and conversions, 0 is before the first
  Phase phase = Phase::kForward;
  MemoryAtPeak memory;
};

// Recomputed from the graph and the choices alone by certify(), which shares no code with the
// solver: nothing else may call a plan optimal.
struct Certificate {
  double cost_us = 0;
  double compute_us = 0;
  double communication_us = 0;
  // The same cost by phase (Phase as index): all microbatches' forward, backward, then the update.
  std::array<double, 3> phase_us = {};
  double lower_bound_us = 0;
  double gap = 0;      // (cost - lower bound) / cost
  std::string status;  // "optimal", "feasible", "time_limit"
  std::int64_t peak_memory_bytes = 0;
  std::string peak_node;  // where the peak occurs
  MemoryAtPeak at_peak;
  std::map<std::string, CollectiveCount> collectives;  // by kind name
  std::vector<MemorySample> memory_timeline;           // see plan/memory_timeline.h
};

struct Plan {
  static constexpr int kVersion = 1;
  std::string graph_hash;
  Cluster cluster;
  std::vector<StagePlan> stages;
  int num_microbatches = 1;
  int microbatches_in_flight = 1;
  Certificate certificate;
};

}  // namespace shardwright
