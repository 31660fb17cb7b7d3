// How one tensor lies on a device mesh: one placement per mesh axis, naming atoms of the tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright {

enum class ReduceOp : std::uint8_t { kSum, kMax, kMin };

// What one mesh axis does to the tensor.
struct Placement {
  enum class Kind : std::uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  std::int16_t atom = -1;  // kShard: index into TensorAtoms::sizes
  std::int8_t order = 0;   // kShard: position among the axes that shard this atom, 0 = outermost
  ReduceOp reduce = ReduceOp::kSum;  // kPartial: the pending reduction

  static Placement replicate() { return {}; }
  static Placement shard(int atom_index, int order_index = 0);
  static Placement partial(ReduceOp op);
  bool operator==(const Placement&) const = default;
  auto operator<=>(const Placement&) const = default;
};

// One placement per mesh axis. Two axes that shard one atom differ in `order`: with S01 axis 0 is
// the outer split and axis 1 the inner one, S10 is the other way round; only the innermost axis of
// an atom may be gathered, exchanged or scattered.
using ShardingSpec = std::vector<Placement>;

// The dims of a tensor cut into atoms, the finest pieces that any view in the step separates: a
// fused QKV weight [3 * heads * e, D] has dims {{3, heads, e}, {D}} so that heads can be sharded
// (a strided shard of dim 0). Atoms are numbered per storage root, shared by all its views, and a
// spec that names atoms therefore means the same on every view. Size-1 dims have no atom.
struct TensorAtoms {
  std::vector<std::int64_t> sizes;     // size of each atom of the root
  std::vector<std::vector<int>> dims;  // per dim of this value: its atoms, outer to inner

  bool operator==(const TensorAtoms&) const = default;
};

// Mesh axes that shard `atom`, outermost split first: {1, 0} for an atom sharded S10.
std::vector<int> axesOfAtom(const ShardingSpec& spec, int atom);
// Number of shards of each atom under `spec` on a mesh of shape `mesh_shape`.
std::vector<std::int64_t> atomShards(const TensorAtoms& atoms, const ShardingSpec& spec,
                                     const std::vector<int>& mesh_shape);
// Local shape of a value: each dim divided by the shards of its atoms.
std::vector<std::int64_t> localShape(const TensorAtoms& atoms, const ShardingSpec& spec,
                                     const std::vector<int>& mesh_shape);
// Shards are even: valid only if each atom's size is divisible by its shards. Besides, the spec has
// one placement per axis, the axes of one atom have orders 0, 1, ... and all pending reductions are
// of one kind (a sum of maxima is not a maximum of sums).
bool isValid(const TensorAtoms& atoms, const ShardingSpec& spec,
             const std::vector<int>& mesh_shape);
bool hasPartial(const ShardingSpec& spec);
ShardingSpec replicatedSpec(int num_axes);
const char* reduceOpName(ReduceOp op);  // "sum", "max", "min"

// One symbol per tensor dim with the mesh axes that shard it, P with its axes when partial:
// "S0 R", "R S01", "R S10", "S0 R P1", "R R P01(max)". A dim of several atoms whose sharded atom is
// not the outermost, or has more than one, prints its atoms in braces: "{R,S1,R} R". A tensor
// without dims prints "R" or its P alone. parseSpec is the inverse and throws PlanError [E310] for
// text that does not fit `atoms` or names an axis twice or out of range.
std::string printSpec(const TensorAtoms& atoms, const ShardingSpec& spec);
ShardingSpec parseSpec(const TensorAtoms& atoms, const std::string& text, int num_axes);

}  // namespace shardwright
