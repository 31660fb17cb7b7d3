// A stage problem as a DeviceGraph: a node is a boundary, how tensors lie on its two sides, and how
// many stages follow; an arc is a stage. Where transfers have links of their own they are arcs too,
// between nodes that each know one side only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "interop/device_path.h"
#include "interop/stage_problem.h"

namespace shardwright {

// In StageGraph::kind_of_arc: a transfer, which takes no devices.
inline constexpr std::int32_t kTransferArc = -1;

struct StageGraph {
  DeviceGraph graph;
  std::vector<std::int32_t> boundary_of_node;
  std::vector<std::int32_t> kind_of_arc;
};

// Leaves out arcs that belong to no path of a smaller value. `price` per device makes the bound;
// any gives the same answers, a good one leaves out more.
struct ArcFilter {
  double value = 0;
  double price = 0;
};

// With `most_stages`, paths of at most that many stages; zero-bubble's memory is then that of so
// many (stages hold less when they are fewer). Without, any number of stages, and zero-bubble's
// memory is that of the most there can be. Where the problem says how many, that is most_stages.
// Contract: the problem is valid, most_stages >= 1.
StageGraph buildStageGraph(const StageProblem& problem,
                           std::optional<int> most_stages = std::nullopt,
                           const std::optional<ArcFilter>& filter = std::nullopt,
                           const std::vector<bool>& kept_submeshes = {});

}  // namespace shardwright
