// The tables of a stage search, filled from the costs of ranges of layers on all meshes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "interop/passing_bytes.h"
#include "interop/stage_costs.h"
#include "interop/stage_ports.h"
#include "interop/stage_problem.h"

namespace shardwright {

// Number of dims of the main values at both sides of a layer class; 0 where there is none.
struct BoundaryDims {
  std::size_t entry = 0;
  std::size_t exit = 0;
};

// A value that goes from one layer to others once per step: a tied weight, a sum of gradients.
struct StepTransfer {
  int source = 0;
  std::vector<int> targets;  // layers
  double time_us = 0;
};

// Microbatches in flight by which ways and prices of memory are compared before the stages are
// known.
inline constexpr int kTypicalInFlight = 4;

struct StageTableOptions {
  int num_microbatches = 1;
  std::optional<std::int64_t> memory_limit_bytes = {};
  std::size_t num_prices = 1;  // of memory, in the layers' tables
  // Most ports kept per submesh and kind of boundary: those in which single layers come nearest to
  // their least time (ties to the first seen). More than that is a restriction of the model.
  std::size_t max_ports = 1000;
  std::vector<StepTransfer> step_transfers = {};
  // Taken to lie as the main values at the ends of the stage do.
  std::vector<PassingValue> passing_values = {};
  std::vector<PassingValue> recomputed_passing_values = {};  // of stages that recompute
  // Whether weight gradients wait (zero-bubble), see stageBytes.
  bool splits_backward = false;
  // Whether stages wait for their transfers, as where no more microbatches are in flight than there
  // are stages behind (1F1B, zero-bubble): by half of what each side's cheapest transfer takes.
  bool waits_for_transfers = false;
  // Most ways kept for one pair of ports and one range of layers; of more, the fastest, the
  // smallest, and what lies evenly between them.
  std::size_t most_ways = 3;
};

// One way to run a range of layers: what a kind of stage stands for there.
struct StageWay {
  int mesh = 0;  // index into the meshes
  std::size_t price = 0;
  std::size_t entry = 0;  // specs of the first layer's table and of the last one's
  std::size_t exit = 0;
  StageCost cost;
  StageBytes bytes;  // without passing values
};

// Owns the StageProblem (without schedule, cluster and number of stages, which the caller sets) and
// knows what its kinds stand for.
class StageTables {
 public:
  // Kinds are pairs of ports of one submesh, so many variants each; a variant of a range is one of
  // the ways that no other is better than in time and memory. The time of a stage is that of
  // forward and backward, and its share of the update and of what it sends other stages once per
  // step. Keeps `sequences` and `meshes`. Contract: `dims` and the meshes' tables are by class of
  // layer as in `sequences`; boundary_tensors is by layer, entry 0 not read.
  StageTables(const LayerSequences& sequences, const std::vector<BoundaryDims>& dims,
              const std::vector<StageMesh>& meshes, const std::vector<SubmeshShape>& submeshes,
              const std::vector<BoundaryTensors>& boundary_tensors, const Cluster& cluster,
              const StageTableOptions& options);

  StageProblem& problem() { return problem_; }
  const StageProblem& problem() const { return problem_; }
  // What a kind is for layers [begin, end). Contract: the kind's time there is finite.
  const StageWay& way(int begin, int end, int kind) const;
  // What it takes, as the problem has it where there is a memory limit. Contract: as of way().
  StageBytes bytes(int begin, int end, int kind) const;

 private:
  // Ways by pair of ports, then by time. The key is entry port * numPorts + exit port.
  using Ways = std::map<std::size_t, std::vector<StageWay>>;

  struct Candidate {
    int sequence = 0;
    int entry = 0;  // ports
    int exit = 0;
    StageWay way;
  };

  std::vector<bool> portsToKeep(int submesh, const std::vector<Candidate>& candidates) const;
  void collectWays(const std::vector<BoundaryDims>& dims, const std::vector<StageMesh>& meshes);
  void addKinds();
  StageBytes bytesOf(int begin, int end, const StageWay& way) const;
  void addBoundaries(const std::vector<BoundaryTensors>& tensors, const Cluster& cluster);
  double timeOf(const StageCost& cost) const;
  double leavingUs(int begin, int end) const;
  void prune(std::vector<StageWay>& ways) const;

  const LayerSequences& sequences_;
  const std::vector<StageMesh>& meshes_;
  const StageTableOptions options_;
  const PassingBytes passing_;
  const PassingBytes recomputed_passing_;
  StagePorts ports_;
  std::vector<std::vector<Ways>> ways_;     // [submesh][sequence]
  std::vector<std::size_t> group_of_kind_;  // key of Ways
  StageProblem problem_;
};

}  // namespace shardwright
