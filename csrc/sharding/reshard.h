// From one spec to another: the one function from which both the price and the emitted
// collectives of every conversion come.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "mesh/cluster.h"
#include "sharding/placement.h"

namespace shardwright {

enum class StepKind : std::uint8_t {
  kAllGather,      // S -> R on `axis`
  kReduceScatter,  // P -> S on `axis`
  kAllReduce,      // P -> R on `axis`
  kAllToAll,       // S(atom) -> S(other atom) on `axis`
  kSlice,          // R -> S on `axis`: each rank keeps its part, no communication
  kMask,           // R -> P(sum) on `axis`: all but the first rank of the group hold zeros
};
const char* stepKindName(StepKind kind);  // "all_gather", "reduce_scatter", ...

struct ReshardStep {
  StepKind kind = StepKind::kSlice;
  int axis = 0;
  int atom = -1;       // atom gathered, scattered, sliced or left
  int to_atom = -1;    // kAllToAll: atom sharded afterwards
  ReduceOp reduce = ReduceOp::kSum;
  std::int64_t bytes = 0;  // the V of the cost formula: gathered, reduced or exchanged local bytes
  double cost_us = 0;
  ShardingSpec after;  // spec when the step is done
};

// Cost of one collective along an axis of n ranks; V bytes as in reference: all-gather V = bytes
// after gathering; reduce-scatter and all-reduce V = bytes before; all-to-all V = local bytes times
// n (the gathered size). Ring formulas: all-gather and reduce-scatter alpha + beta (n-1)/n V,
// all-reduce alpha + 2 beta (n-1)/n V, all-to-all alpha + beta (n-1)/n^2 V (Alpa, table of
// section 4.2). Slice and mask cost 0.
double collectiveCostUs(StepKind kind, const DeviceMesh& mesh, int axis, double bytes);

// Cheapest sequence of steps from `from` to `to`; nullopt if there is none (for instance to a
// pending max). Reductions of `dtype` price fp32 accumulation where `reduce_dtype` is wider.
// Deterministic. Worked example: P0 P1 -> R on 2 x 4 gives reduce-scatter on axis 1, all-reduce on
// axis 0, all-gather on axis 1, each over an atom that divides.
std::optional<std::vector<ReshardStep>> planReshard(const TensorAtoms& atoms, DType dtype,
                                                    const ShardingSpec& from,
                                                    const ShardingSpec& to,
                                                    const DeviceMesh& mesh);

// The same with memory: price (microseconds) of every ordered pair asked for, one search per
// distinct source. kUnreachableUs marks "no way", never a number that can be added.
inline constexpr double kUnreachableUs = -1;
class ReshardTable {
 public:
  ReshardTable(TensorAtoms atoms, DType dtype, const DeviceMesh& mesh);
  double costUs(const ShardingSpec& from, const ShardingSpec& to);
  std::optional<std::vector<ReshardStep>> steps(const ShardingSpec& from, const ShardingSpec& to);

 private:
  struct Search;
  TensorAtoms atoms_;
  DType dtype_;
  const DeviceMesh* mesh_;
  std::vector<std::pair<ShardingSpec, std::shared_ptr<Search>>> searches_;
};

}  // namespace shardwright
