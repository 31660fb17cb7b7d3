// From a sharded graph on one mesh to the abstract integer program, and back.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cost/compute.h"
#include "intraop/problem.h"
#include "mesh/cluster.h"
#include "plan/plan.h"
#include "sharding/conversion_points.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace shardwright {

// Cost units of the integer program: 1 unit = 1 / kUnitsPerUs microseconds.
inline constexpr double kUnitsPerUs = 1000;

// Microseconds to units, rounded to nearest: costUnits(1.2346) == 1235.
std::int64_t costUnits(double us);

struct ModelOptions {
  std::optional<std::int64_t> memory_limit_bytes;
  // Specs the user (or a test) demands, by input name or node name: of the node's forcedValue().
  std::map<std::string, ShardingSpec> forced;
  // Phase weights (number of microbatches for forward and backward, 1 for update).
  std::array<double, 3> phase_weight = {1, 1, 1};
  // Microbatches of a pipeline stage that hold activations at once, see ModelMemory.
  int microbatches_in_flight = 1;
  // Products (matmul, convolution, attention) may not leave a mesh axis idle, as Alpa demands;
  // needed where compute costs nothing.
  bool shard_all_products = false;
  // Leaves bytes and the choices that matter to them alone out: inputs that are only read are held
  // whole, and a conversion is no other choice for being a copy. The least cost is the same, the
  // problem much smaller. stagePlan then stores such inputs in the smallest parts that cost nothing
  // more.
  bool ignore_memory = false;
};

// What the solver decides, per problem node, in problem order.
struct ModelNode {
  enum class Kind : std::uint8_t { kOp, kConversion, kResult };
  Kind kind = Kind::kOp;
  NodeId op;            // kOp: a graph node that is no view
  int conversion = -1;  // kConversion: index into Model::conversions()
  int result = -1;      // kResult: index into Graph::outputs(), a value returned to the user
};

// How a conversion point holds its value.
struct ConversionStrategy {
  enum class Form : std::uint8_t {
    kConverted,  // any spec, in memory that takes over from the value's own at once
    kAlias,      // the value's own buffer, where that stays whatever is chosen (inputs)
    kCopy,       // another spec than the value's, in memory beside the value's own
    kOwn,        // group 1: the value's own buffer, kept although group 0 has a conversion
    kKept,       // group 1: the buffer of group 0
  };
  ShardingSpec spec;
  Form form = Form::kConverted;
};

// The integer program of one stage: a node per op (and input) over its strategies, a node per
// conversion point over the specs it can hold, and one price table per edge. Memory pieces follow
// the emission order: conversions of op outputs right after the op, those of inputs right before
// their first use, and conversions of a single consumer right before it. Copies made for a single
// consumer are not counted here (edges carry no memory); the certificate counts them.
//
// Example: y = mm(x, w) and z = mm(x, v) on a mesh of 2 give nodes x, w, v, y, z and one conversion
// of x, with edges x-C, C-y, C-z, w-y, v-z.
class Model {
 public:
  // Throws PlanError [E312] when `forced` leaves a node without strategies or names no node.
  Model(const ShardedGraph& graph, const DeviceMesh& mesh, const Cluster& cluster,
        const ModelOptions& options);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const Problem& problem() const;
  const std::vector<ModelNode>& nodes() const;
  const std::vector<ConversionPoint>& conversions() const;
  const std::vector<Strategy>& strategies(NodeId op) const;
  const std::vector<ConversionStrategy>& conversionStrategies(int conversion) const;

  // Cost of a choice by phase, each with its phase's weight: their sum is the choice's cost.
  // Contract: the choice is valid.
  std::array<std::int64_t, 3> phaseUnits(std::span<const std::int32_t> choice) const;

  // The choices in words: specs of every op and conversion.
  StagePlan stagePlan(const std::vector<std::int32_t>& choice) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwright
