// The abstract choice problem of the intra-operator search: pick one strategy per node so that node
// and edge costs are least and the bytes alive at any time stay within the limit.
// Source: Alpa (OSDI 2022) section 4.2, with memory over live intervals in place of one total.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace shardwright {

// Cost of a combination that must not be chosen. A mark, not a number: see addCost.
inline constexpr int64_t kForbidden = std::numeric_limits<int64_t>::max();

// Longest list of strategies a node may have.
inline constexpr int32_t kMaxStrategies = 1 << 16;

// Sum of two costs; kForbidden absorbs, and a sum past the int64 range is a ProblemError [E211].
// Example: addCost(3, 4) == 7, addCost(3, kForbidden) == kForbidden.
int64_t addCost(int64_t a, int64_t b);

// A node of a Problem, in the order of ProblemBuilder::addNode.
using ChoiceNodeId = Id<struct ChoiceNodeTag>;
// A cost table of a Problem; equal tables have equal ids.
using CostTableId = Id<struct CostTableTag>;

// Half-open range of program points [begin, end); empty when end <= begin.
struct LiveInterval {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return end <= begin; }
  bool operator==(const LiveInterval&) const = default;
};

// Bytes a node holds during one interval, per strategy.
struct MemoryPiece {
  LiveInterval interval;
  std::vector<int64_t> bytes;
  bool operator==(const MemoryPiece&) const = default;
};

// Immutable matrix of edge costs, row-major; entries may be kForbidden.
class CostTable {
 public:
  CostTable(int32_t num_rows, int32_t num_cols, std::vector<int64_t> costs);

  int32_t numRows() const { return num_rows_; }
  int32_t numCols() const { return num_cols_; }
  int64_t at(int32_t row, int32_t col) const {
    return costs_[static_cast<size_t>(row) * static_cast<size_t>(num_cols_) +
                  static_cast<size_t>(col)];
  }
  std::span<const int64_t> costs() const { return costs_; }
  uint64_t contentHash() const { return hash_; }
  bool operator==(const CostTable& other) const;

 private:
  int32_t num_rows_;
  int32_t num_cols_;
  std::vector<int64_t> costs_;
  uint64_t hash_;
};

// One decision: strategy s costs costs[s] and holds the sum of the pieces' bytes[s].
struct ChoiceNode {
  std::string name;
  std::vector<int64_t> costs;
  std::vector<MemoryPiece> memory;
};

// Cost between two decisions: table entry [s_u, s_v], or [s_v, s_u] when transposed.
struct ChoiceEdge {
  ChoiceNodeId u;
  ChoiceNodeId v;
  CostTableId table;
  bool transposed = false;
};

// A whole problem. Never changes once built; copies share the tables.
class Problem {
 public:
  const std::string& name() const { return name_; }
  size_t numNodes() const { return nodes_.size(); }
  const std::vector<ChoiceNode>& nodes() const { return nodes_; }
  const std::vector<ChoiceEdge>& edges() const { return edges_; }
  const std::vector<std::shared_ptr<const CostTable>>& tables() const { return tables_; }
  const CostTable& table(CostTableId id) const { return *tables_[id.index()]; }
  // Most bytes that may be alive at one time; none means unlimited.
  const std::optional<int64_t>& memoryLimitBytes() const { return memory_limit_bytes_; }

  // The same problem under another limit (tables shared).
  Problem withMemoryLimit(std::optional<int64_t> limit_bytes) const;
  // The same problem with other costs of nodes, [node][strategy] (tables shared). Throws
  // ProblemError [E211] where their number differs.
  Problem withNodeCosts(std::vector<std::vector<int64_t>> costs) const;

 private:
  friend class ProblemBuilder;
  Problem() = default;

  std::string name_;
  std::vector<ChoiceNode> nodes_;
  std::vector<ChoiceEdge> edges_;
  std::vector<std::shared_ptr<const CostTable>> tables_;
  std::optional<int64_t> memory_limit_bytes_;
};

// Collects a Problem and checks it piece by piece; every call raises ProblemError [E211] on shapes
// that do not fit, negative bytes, or sums that could leave the exact range of int64.
class ProblemBuilder {
 public:
  explicit ProblemBuilder(std::string name = "");
  // Starts from a problem: its nodes and tables keep their ids.
  explicit ProblemBuilder(Problem start);

  // Adds a decision with costs.size() strategies (at least one).
  ChoiceNodeId addNode(std::vector<int64_t> costs, std::vector<MemoryPiece> memory = {},
                       std::string name = "");

  // Adds a table, or finds the equal one added before. costs is row-major, num_rows x num_cols.
  CostTableId addTable(int32_t num_rows, int32_t num_cols, std::vector<int64_t> costs);

  // Adds an edge. Parallel edges add up; an edge from a node to itself prices the diagonal.
  void addEdge(ChoiceNodeId u, ChoiceNodeId v, CostTableId table, bool transposed = false);

  // Forces two nodes to matching strategies: only pairs with label_u[s_u] == label_v[s_v] stay.
  // Example: a parameter's new value must have its old spec.
  void addAlias(ChoiceNodeId u, ChoiceNodeId v, std::span<const int64_t> label_u,
                std::span<const int64_t> label_v);

  void setMemoryLimit(int64_t limit_bytes);

  Problem build() &&;

 private:
  friend class Problem;
  void takeTables(const Problem& source);

  Problem problem_;
  std::unordered_multimap<uint64_t, CostTableId> tables_by_hash_;
  std::vector<int64_t> table_magnitude_;
  int64_t cost_magnitude_ = 0;
  int64_t bytes_magnitude_ = 0;
};

}  // namespace shardwright
