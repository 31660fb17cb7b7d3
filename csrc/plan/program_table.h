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

struct LocalTensor {
  std::vector<std::int64_t> local_shape;
  std::vector<std::int64_t> global_shape;
  DType dtype = DType::kFloat32;
  TensorAtoms atoms;
  ShardingSpec spec;
};

struct Instruction {
  enum class Kind : std::uint8_t { kInput, kCompute, kReshard };
  Kind kind = Kind::kCompute;
  NodeId node;  // graph node: of the input, of the op, or whose operand/conversion this is
  Phase phase = Phase::kForward;
  int stage = 0;
  // kCompute: op name (the node's own, or the rule's offset_op / sharded_op) and local arguments.
  std::string op;
  LocalArgList args;
  std::vector<std::pair<std::string, LocalArg>> kwargs;
  // kReshard: one collective, slice or mask. The tensor is seen as [outer, n * inner] around the
  // atom within contiguous row-major order of its LOCAL shape before the step.
  ReshardStep step;
  LocalRef source;
  int dim = -1;            // dim of the atom in the value's shape
  std::int64_t outer = 1;  // local elements of that dim outside the atom (strided shards)
  int to_dim = -1;         // all-to-all: the same for the atom sharded afterwards
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

// Emits reshards exactly as priced: one instruction per step of planReshard, conversions once per
// ConversionChoice, private ones per operand; views are re-applied to converted roots. Dead
// instructions are not emitted. Throws PlanError [E311] when a choice does not fit the graph.
ProgramTable emitProgram(const ShardedGraph& graph, const Plan& plan, const DeviceMesh& mesh);

}  // namespace shardwright
