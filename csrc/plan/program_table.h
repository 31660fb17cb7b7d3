// The plan spelled out as instructions over local shards, the same for all ranks: what Python turns
// into fx GraphModules. csrc/plan decides everything here; Python only writes it down.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "sharding/reshard.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

// An integer that may depend on the rank: base + sum over axes of per_axis[a] * coordinate[a].
struct RankInt {
  std::int64_t base = 0;
  std::array<std::int64_t, kMaxAxes> per_axis{};
};

// Index of an instruction's output: values of the program.
struct LocalRef {
  int instruction = 0;
  int output = 0;
};

struct LocalArg;
using LocalArgList = std::vector<LocalArg>;
struct LocalArg {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, LocalRef, RankInt,
               LocalArgList>
      value;
};

// One value on one rank; every rank's has the same shape.
struct LocalTensor {
  std::vector<std::int64_t> local_shape;
  std::vector<std::int64_t> global_shape;
  DType dtype = DType::kFloat32;
  TensorAtoms atoms;
  ShardingSpec spec;
};

// One instruction. A dim that holds several atoms is seen, at the atom a conversion is about, as
// [outer, atom, inner] in row-major order: that is how all_gather joins the parts of the ranks
// (each part [outer, part, inner]) and how slice and reduce_scatter cut them. all_to_all cuts at
// `to_dim` and `to_outer` and joins the parts received at `dim` and `outer`; both count local
// elements before the step, so where both atoms are in one dim and `to_atom` lies outside `atom`,
// the parts received have outer / n elements there.
struct Instruction {
  enum class Kind : std::uint8_t { kInput, kCompute, kReshard };
  Kind kind = Kind::kCompute;
  NodeId node;  // graph node: the input, the op, or the one a conversion is made for
  Phase phase = Phase::kForward;  // when it runs: instructions of one phase are not interleaved
                                  // with others more than the graph's nodes are
  int stage = 0;
  // kCompute: op name (the node's own, reshape for a view, or the rule's offset_op or sharded_op)
  // and local arguments.
  std::string op;
  LocalArgList args;
  std::vector<std::pair<std::string, LocalArg>> kwargs;
  // kReshard: one collective, slice or mask.
  ReshardStep step;
  LocalRef source;
  int dim = -1;            // dim of step.atom in the value's shape; -1 for all_reduce and mask
  std::int64_t outer = 1;  // local elements of that dim outside the atom (strided shards)
  int to_dim = -1;         // all_to_all: the same for step.to_atom
  std::int64_t to_outer = 1;
  std::vector<LocalTensor> outputs;
};

// Result of the step, in the order of Graph::outputs().
struct ProgramOutput {
  LocalRef value;
  int updates = -1;  // instruction index of the kInput that takes the value, -1 = returned
};

struct ProgramTable {
  std::vector<int> mesh_shape;
  std::vector<Instruction> instructions;
  std::vector<ProgramOutput> outputs;
};

// Shape and spec of the shards of `value`. Contract: the spec is valid for the value's atoms.
LocalTensor localTensor(const ShardedGraph& graph, ValueRef value, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape);

// The program of a plan: ops in graph order, conversions where conversion_points.h says, one
// instruction per step of planReshard, so that what is emitted is what was priced.
//  - Inputs first, all of them, in graph order.
//  - A conversion point of an op's output right after the op, that of an input right before the
//    first use of its group; kept ones ("from_first") are the same value.
//  - What remains between a point (or a value without points) and an operand right before the node,
//    for that operand alone.
//  - Views of a value, converted or not, where first needed, with local shapes.
//  - Results returned to the user are made whole at the end; new values of inputs get the spec of
//    the input after the last reader of the old value.
// Nodes whose values nothing needs are left out. Throws PlanError [E311] when a choice does not fit
// the graph: nodes or points without choice, specs without a way between them, another mesh, an
// in-place update of a value that would have to be converted first.
ProgramTable emitProgram(const ShardedGraph& graph, const Plan& plan, const DeviceMesh& mesh);

}  // namespace shardwright
