#include "intraop/problem.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"

namespace shardwright {
namespace {

// All sums of one choice stay below this, so int64 arithmetic on them cannot overflow.
constexpr int64_t kMaxMagnitude = int64_t{1} << 60;

[[noreturn]] void throwProblemError(const std::string& summary, const std::string& values,
                                    const std::string& advice) {
  throw Error(ErrorKind::kProblem, "E211", summary + ".", {.values = {values}, .advice = advice});
}

uint64_t hashCosts(int32_t num_rows, int32_t num_cols, std::span<const int64_t> costs) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ (static_cast<uint64_t>(num_rows) << 32) ^
                  static_cast<uint64_t>(num_cols);
  for (int64_t cost : costs) {
    hash ^= static_cast<uint64_t>(cost);
    hash *= 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

// Largest absolute finite entry; the magnitude this list can add to a total.
int64_t largestFinite(std::span<const int64_t> costs) {
  int64_t largest = 0;
  for (int64_t cost : costs) {
    if (cost == kForbidden) continue;
    if (cost > kMaxMagnitude || cost < -kMaxMagnitude) {
      throwProblemError("a cost is out of range", "cost " + std::to_string(cost),
                        "scale the costs so that their sum stays below 2^60");
    }
    largest = std::max(largest, std::abs(cost));
  }
  return largest;
}

void addMagnitude(int64_t& total, int64_t part, const char* what) {
  total += part;
  if (total > kMaxMagnitude) {
    throwProblemError(std::string(what) + " can sum past the exact range", "worst sum above 2^60",
                      "use a coarser unit");
  }
}

}  // namespace

int64_t addCost(int64_t a, int64_t b) {
  if (a == kForbidden || b == kForbidden) return kForbidden;
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum == kForbidden) {
    throwProblemError("cost sum overflows int64", std::to_string(a) + " + " + std::to_string(b),
                      "use a coarser unit");
  }
  return sum;
}

CostTable::CostTable(int32_t num_rows, int32_t num_cols, std::vector<int64_t> costs)
    : num_rows_(num_rows),
      num_cols_(num_cols),
      costs_(std::move(costs)),
      hash_(hashCosts(num_rows, num_cols, costs_)) {}

bool CostTable::operator==(const CostTable& other) const {
  return num_rows_ == other.num_rows_ && num_cols_ == other.num_cols_ && costs_ == other.costs_;
}

Problem Problem::withMemoryLimit(std::optional<int64_t> limit_bytes) const {
  Problem copy = *this;
  copy.memory_limit_bytes_ = limit_bytes;
  return copy;
}

Problem Problem::withNodeCosts(std::vector<std::vector<int64_t>> costs) const {
  ProblemBuilder builder(name_);
  if (costs.size() != nodes_.size()) {
    throwProblemError(
        "costs for another number of nodes",
        std::to_string(costs.size()) + " lists, " + std::to_string(nodes_.size()) + " nodes",
        "give one list per node");
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (costs[n].size() != nodes_[n].costs.size()) {
      throwProblemError("costs for another number of strategies",
                        "node " + std::to_string(n) + ": " + std::to_string(costs[n].size()) +
                            " instead of " + std::to_string(nodes_[n].costs.size()),
                        "give one cost per strategy");
    }
    builder.addNode(std::move(costs[n]), nodes_[n].memory, nodes_[n].name);
  }
  builder.takeTables(*this);
  builder.problem_.memory_limit_bytes_ = memory_limit_bytes_;
  return std::move(builder).build();
}

ProblemBuilder::ProblemBuilder(std::string name) { problem_.name_ = std::move(name); }

ProblemBuilder::ProblemBuilder(Problem start) {
  problem_.name_ = std::move(start.name_);
  problem_.memory_limit_bytes_ = start.memory_limit_bytes_;
  for (ChoiceNode& node : start.nodes_) {
    addNode(std::move(node.costs), std::move(node.memory), std::move(node.name));
  }
  takeTables(start);
}

// Tables and edges of a problem whose nodes are there already.
void ProblemBuilder::takeTables(const Problem& source) {
  problem_.tables_ = source.tables_;
  for (size_t t = 0; t < problem_.tables_.size(); ++t) {
    const CostTable& table = *problem_.tables_[t];
    tables_by_hash_.emplace(table.contentHash(), CostTableId(t));
    table_magnitude_.push_back(largestFinite(table.costs()));
  }
  for (const ChoiceEdge& edge : source.edges_) {
    addEdge(edge.u, edge.v, edge.table, edge.transposed);
  }
}

ChoiceNodeId ProblemBuilder::addNode(std::vector<int64_t> costs, std::vector<MemoryPiece> memory,
                                     std::string name) {
  const std::string where =
      "node " + std::to_string(problem_.nodes_.size()) + (name.empty() ? "" : " (" + name + ")");
  if (costs.empty() || costs.size() > static_cast<size_t>(kMaxStrategies)) {
    throwProblemError("a node needs between 1 and 65536 strategies",
                      where + " has " + std::to_string(costs.size()), "give every node a strategy");
  }
  addMagnitude(cost_magnitude_, largestFinite(costs), "costs");
  for (const MemoryPiece& piece : memory) {
    if (piece.bytes.size() != costs.size()) {
      throwProblemError("a memory piece needs one size per strategy",
                        where + ": " + std::to_string(piece.bytes.size()) + " sizes, " +
                            std::to_string(costs.size()) + " strategies",
                        "give bytes for every strategy, 0 where nothing is held");
    }
    int64_t largest = 0;
    for (int64_t bytes : piece.bytes) {
      if (bytes < 0 || bytes > kMaxMagnitude) {
        throwProblemError("bytes are out of range", where + ": " + std::to_string(bytes),
                          "bytes lie between 0 and 2^60");
      }
      largest = std::max(largest, bytes);
    }
    if (!piece.interval.empty()) addMagnitude(bytes_magnitude_, largest, "bytes");
  }
  std::erase_if(memory, [](const MemoryPiece& piece) { return piece.interval.empty(); });
  problem_.nodes_.push_back({std::move(name), std::move(costs), std::move(memory)});
  return ChoiceNodeId(problem_.nodes_.size() - 1);
}

CostTableId ProblemBuilder::addTable(int32_t num_rows, int32_t num_cols,
                                     std::vector<int64_t> costs) {
  if (num_rows <= 0 || num_cols <= 0 || num_rows > kMaxStrategies || num_cols > kMaxStrategies ||
      costs.size() != static_cast<size_t>(num_rows) * static_cast<size_t>(num_cols)) {
    throwProblemError("a cost table has the wrong number of entries",
                      std::to_string(num_rows) + " x " + std::to_string(num_cols) + " table, " +
                          std::to_string(costs.size()) + " entries",
                      "give num_rows * num_cols entries, row by row");
  }
  const int64_t magnitude = largestFinite(costs);
  CostTable table(num_rows, num_cols, std::move(costs));
  const auto [first, last] = tables_by_hash_.equal_range(table.contentHash());
  for (auto it = first; it != last; ++it) {
    if (problem_.table(it->second) == table) return it->second;
  }
  const CostTableId id(problem_.tables_.size());
  tables_by_hash_.emplace(table.contentHash(), id);
  problem_.tables_.push_back(std::make_shared<const CostTable>(std::move(table)));
  table_magnitude_.push_back(magnitude);
  return id;
}

void ProblemBuilder::addEdge(ChoiceNodeId u, ChoiceNodeId v, CostTableId table, bool transposed) {
  const std::string where = "edge " + std::to_string(problem_.edges_.size());
  const size_t num_nodes = problem_.nodes_.size();
  if (!u.isValid() || !v.isValid() || !table.isValid() || u.index() >= num_nodes ||
      v.index() >= num_nodes || table.index() >= problem_.tables_.size()) {
    throwProblemError("an edge names a node or table that does not exist", where,
                      "add nodes and tables before their edges");
  }
  const CostTable& costs = problem_.table(table);
  const auto size_u = static_cast<int32_t>(problem_.nodes_[u.index()].costs.size());
  const auto size_v = static_cast<int32_t>(problem_.nodes_[v.index()].costs.size());
  const int32_t rows = transposed ? costs.numCols() : costs.numRows();
  const int32_t cols = transposed ? costs.numRows() : costs.numCols();
  if (rows != size_u || cols != size_v) {
    throwProblemError("an edge's table does not fit its nodes",
                      where + ": table " + std::to_string(rows) + " x " + std::to_string(cols) +
                          ", nodes with " + std::to_string(size_u) + " and " +
                          std::to_string(size_v) + " strategies",
                      "rows are the strategies of the first node");
  }
  addMagnitude(cost_magnitude_, table_magnitude_[table.index()], "costs");
  problem_.edges_.push_back({u, v, table, transposed});
}

void ProblemBuilder::addAlias(ChoiceNodeId u, ChoiceNodeId v, std::span<const int64_t> label_u,
                              std::span<const int64_t> label_v) {
  std::vector<int64_t> costs;
  costs.reserve(label_u.size() * label_v.size());
  for (int64_t a : label_u) {
    for (int64_t b : label_v) costs.push_back(a == b ? 0 : kForbidden);
  }
  addEdge(u, v,
          addTable(static_cast<int32_t>(label_u.size()), static_cast<int32_t>(label_v.size()),
                   std::move(costs)));
}

void ProblemBuilder::setMemoryLimit(int64_t limit_bytes) {
  if (limit_bytes < 0) {
    throwProblemError("the memory limit is negative", std::to_string(limit_bytes),
                      "give a limit of 0 bytes or more, or none");
  }
  problem_.memory_limit_bytes_ = limit_bytes;
}

Problem ProblemBuilder::build() && { return std::move(problem_); }

}  // namespace shardwright
