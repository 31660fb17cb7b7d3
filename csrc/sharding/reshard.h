// From one spec to another: the one function from which both the price and the emitted
// collectives of every conversion come.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
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
inline constexpr std::array<StepKind, 6> kStepKinds = {
    StepKind::kAllGather, StepKind::kReduceScatter, StepKind::kAllReduce,
    StepKind::kAllToAll,  StepKind::kSlice,         StepKind::kMask};
const char* stepKindName(StepKind kind);  // "all_gather", "reduce_scatter", "all_reduce",
                                          // "all_to_all", "slice", "mask"

// One step. A shard that comes or goes is always the innermost of its atom.
struct ReshardStep {
  StepKind kind = StepKind::kSlice;
  int axis = 0;
  int atom = -1;     // atom gathered, scattered, sliced or left; -1 for all-reduce and mask
  int to_atom = -1;  // kAllToAll: atom sharded afterwards
  ReduceOp reduce = ReduceOp::kSum;
  // Reductions: dtype in which the data travel and add, the tensor's own or float32 (see
  // CollectiveConstants::reduce_in_fp32).
  DType reduce_dtype = DType::kFloat32;
  std::int64_t bytes = 0;  // the V of the cost formula: gathered, reduced or exchanged local bytes
  double cost_us = 0;
  ShardingSpec after;  // spec when the step is done
};

// Cost of one collective along an axis of n ranks; V bytes as in reference: all-gather V = bytes
// after gathering; reduce-scatter and all-reduce V = bytes before; all-to-all V = local bytes times
// n (the gathered size). Ring formulas (Alpa, table of section 4.2):
//   all-gather      alpha + beta (n-1)/n V
//   reduce-scatter  alpha + beta (n-1)/n V * reduce_scatter_penalty
//   all-reduce      alpha + beta 2 (n-1)/n V
//   all-to-all      alpha + beta (n-1)/n^2 V * all_to_all_scale * all_to_all_penalty
// each plus its constant from CollectiveConstants. Slice and mask cost 0, and so does anything on
// an axis of one rank. Worked example: all-reduce of 1024 bytes over 4 ranks with alpha = beta = 1
// costs 1 + 2 * 3/4 * 1024 = 1537 us.
double collectiveCostUs(StepKind kind, const DeviceMesh& mesh, int axis, double bytes);

// Cheapest sequence of steps from `from` to `to`, empty if they are equal; nullopt if there is none
// (for instance to a pending max, or a spec that is not valid). Of equally cheap sequences the
// shortest, then the one that never holds more local bytes. A sum is left pending (mask) for
// floating dtypes only; kinds in CollectiveConstants::forbidden are not used. Deterministic.
// Worked example: P0 P1 -> R on 2 x 4 gives reduce-scatter on axis 1, all-reduce on axis 0,
// all-gather on axis 1, each over an atom that divides.
std::optional<std::vector<ReshardStep>> planReshard(const TensorAtoms& atoms, DType dtype,
                                                    const ShardingSpec& from,
                                                    const ShardingSpec& to, const DeviceMesh& mesh);

// Prices of all conversions of one tensor, remembered: one search per distinct source. Only the
// sizes of the atoms matter, not how they make up dims. Not thread safe. `mesh` must outlive it.
inline constexpr double kUnreachableUs = -1;  // "no way", never a number that can be added
class ReshardTable {
 public:
  ReshardTable(const TensorAtoms& atoms, DType dtype, const DeviceMesh& mesh);
  ~ReshardTable();
  ReshardTable(ReshardTable&&) noexcept;
  ReshardTable& operator=(ReshardTable&&) noexcept;

  // Microseconds, or kUnreachableUs.
  double costUs(const ShardingSpec& from, const ShardingSpec& to);
  // As planReshard: same steps, same price.
  std::optional<std::vector<ReshardStep>> steps(const ShardingSpec& from, const ShardingSpec& to);
  // The same for whole matrices: number specs once, then look up by number. -1 for a spec that is
  // not valid for the tensor; costUs of it is kUnreachableUs, also to itself.
  int specIndex(const ShardingSpec& spec);
  double costUs(int from, int to);

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

// One ReshardTable per distinct (atom sizes, kind of dtype), shared by all tensors alike. Keep it
// as long as its mesh.
class ReshardTableCache {
 public:
  explicit ReshardTableCache(const DeviceMesh& mesh) : mesh_(&mesh) {}
  // The reference stays good as long as the cache.
  ReshardTable& table(const TensorAtoms& atoms, DType dtype);
  std::size_t size() const { return tables_.size(); }

 private:
  const DeviceMesh* mesh_;
  std::map<std::pair<std::vector<std::int64_t>, DType>, ReshardTable> tables_;
};

}  // namespace shardwright
