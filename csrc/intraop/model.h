// From a sharded graph on one mesh to the abstract integer program, and back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "intraop/problem.h"
#include "mesh/cluster.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace shardwright {

// A place where a value is held in a spec for several consumers, so that its conversion is priced
// once, emitted once, and occupies memory from its making to its last use. Values (roots, with the
// uses of all their views) with two or more uses have one per group of uses: the uses of the first
// phase that uses the value, then those of the later phases. The second takes either the value
// itself (made again from the stored one: "gather again in backward") or the first conversion when
// it has the same spec ("keep it").
struct ConversionPoint {
  ValueRef value;        // the root
  int group = 0;         // 0: first phase with uses, 1: the phases after it
  std::vector<Use> uses;  // of the root or of a view of it
};

// Cost units of the integer program: 1 unit = 1 / kUnitsPerUs microseconds.
inline constexpr double kUnitsPerUs = 1000;

struct ModelOptions {
  std::optional<std::int64_t> memory_limit_bytes;
  // Specs the user (or a test) demands, by input name or node name: the value's output 0.
  std::map<std::string, ShardingSpec> forced;
  // Phase weights (number of microbatches for forward and backward, 1 for update).
  double phase_weight[3] = {1, 1, 1};
  // Restrict kinds of reshard steps, for oracles ("no all-gather").
  std::vector<std::string> forbidden_collectives;
};

// What the solver decides, per problem node, in problem order.
struct ModelNode {
  enum class Kind : std::uint8_t { kOp, kConversion, kResult };
  Kind kind = Kind::kOp;
  NodeId op;           // kOp
  int conversion = -1;  // kConversion: index into Model::conversions
  int result = -1;     // kResult: index into Graph::outputs()
};

struct ConversionStrategy {
  ShardingSpec spec;
  bool from_first = false;  // group 1: the kept conversion of group 0
};

class Model {
 public:
  Model(const ShardedGraph& graph, const DeviceMesh& mesh, const Cluster& cluster,
        const ModelOptions& options);

  const Problem& problem() const;
  const std::vector<ModelNode>& nodes() const;
  const std::vector<ConversionPoint>& conversions() const;
  const std::vector<Strategy>& strategies(NodeId op) const;
  const std::vector<ConversionStrategy>& conversionStrategies(int conversion) const;
};

}  // namespace shardwright
