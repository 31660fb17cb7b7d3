#include "intraop/contest_reader.h"

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "intraop/table_pool.h"

namespace shardwright {
namespace {

// A longer pair is wrong whatever follows.
constexpr size_t kLongestPair = 16;

// The document as written, edge tables merged by content while they are read.
struct RawProblem {
  std::string name;
  std::vector<LiveInterval> intervals;
  std::vector<std::vector<int64_t>> node_costs;
  std::vector<std::vector<int64_t>> usages;
  std::vector<std::pair<int64_t, int64_t>> edge_nodes;
  std::vector<size_t> edge_tables;
  std::vector<std::vector<int64_t>> tables;
  std::optional<int64_t> usage_limit;
};

class ContestReader {
 public:
  ContestReader(const std::string& path, const JsonLimits& limits) : scanner_(path, limits) {}

  Problem read() {
    bool found = false;
    scanner_.readObject([&](const std::string& key) {
      if (key != "problem") failOnKey(key, "problem");
      readProblem();
      found = true;
    });
    scanner_.expectEnd();
    if (!found) {
      scanner_.fail("a problem file has no problem", "no member \"problem\"",
                    "wrap the instance in {\"problem\": ...}");
    }
    return build();
  }

 private:
  [[noreturn]] void failOnKey(const std::string& key, const std::string& known) {
    scanner_.fail("a problem file has a key that is not known", "\"" + key + "\"",
                  "known here: " + known);
  }

  void readProblem() {
    scanner_.readObject([&](const std::string& key) {
      if (key == "name") {
        raw_.name = scanner_.readString();
      } else if (key == "nodes") {
        readNodes();
      } else if (key == "edges") {
        readEdges();
      } else if (key == "usage_limit") {
        raw_.usage_limit = scanner_.readInteger();
      } else {
        failOnKey(key, "name, nodes, edges, usage_limit");
      }
    });
  }

  void readNodes() {
    scanner_.readObject([&](const std::string& key) {
      if (key == "intervals") {
        scanner_.readArray([&] {
          const auto [begin, end] = readPair("an interval is [begin, end]");
          raw_.intervals.push_back({begin, end});
        });
      } else if (key == "costs") {
        scanner_.readArray([&] { raw_.node_costs.push_back(readCosts(kMaxStrategies)); });
      } else if (key == "usages") {
        scanner_.readArray([&] {
          raw_.usages.emplace_back();
          scanner_.readIntegers(raw_.usages.back(), kMaxStrategies);
        });
      } else {
        failOnKey(key, "intervals, costs, usages");
      }
    });
  }

  void readEdges() {
    scanner_.readObject([&](const std::string& key) {
      if (key == "nodes") {
        scanner_.readArray(
            [&] { raw_.edge_nodes.push_back(readPair("edges between two nodes are supported")); });
      } else if (key == "costs") {
        scanner_.readArray(
            [&] { raw_.edge_tables.push_back(internTable(readCosts(mostTableEntries()))); });
      } else {
        failOnKey(key, "nodes, costs");
      }
    });
  }

  std::pair<int64_t, int64_t> readPair(const std::string& advice) {
    std::vector<int64_t> values;
    scanner_.readIntegers(values, kLongestPair);
    if (values.size() != 2) {
      scanner_.fail("a pair in a problem file has the wrong length",
                    std::to_string(values.size()) + " numbers", advice);
    }
    return {values[0], values[1]};
  }

  // Entries that the table of the edge read next can have: exactly known when nodes come first, as
  // the contest writes them.
  size_t mostTableEntries() const {
    const size_t edge = raw_.edge_tables.size();
    size_t most = 1;
    for (const int side : {0, 1}) {
      size_t of_side = kMaxStrategies;
      if (edge < raw_.edge_nodes.size()) {
        const auto [u, v] = raw_.edge_nodes[edge];
        const auto node = static_cast<size_t>(side == 0 ? u : v);
        if (node < raw_.node_costs.size()) of_side = raw_.node_costs[node].size();
      }
      most *= of_side;
    }
    return most;
  }

  std::vector<int64_t> readCosts(size_t max_count) {
    std::vector<int64_t> costs;
    scanner_.readIntegers(costs, max_count);
    for (int64_t& cost : costs) {
      if (cost >= kContestForbidden) cost = kForbidden;
    }
    costs.shrink_to_fit();
    return costs;
  }

  size_t internTable(std::vector<int64_t> costs) {
    const uint64_t hash = hashBytes(costs.data(), costs.size() * sizeof(int64_t), 11);
    const auto [first, last] = table_of_hash_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (raw_.tables[it->second] == costs) return it->second;
    }
    table_of_hash_.emplace(hash, raw_.tables.size());
    raw_.tables.push_back(std::move(costs));
    return raw_.tables.size() - 1;
  }

  void requireEqualCounts(const std::string& what, size_t a, size_t b) {
    if (a == b) return;
    scanner_.fail("lists of a problem file differ in length",
                  what + ": " + std::to_string(a) + " and " + std::to_string(b),
                  "give one entry per node, and one per edge");
  }

  Problem build() {
    requireEqualCounts("node intervals and costs", raw_.intervals.size(), raw_.node_costs.size());
    requireEqualCounts("node usages and costs", raw_.usages.size(), raw_.node_costs.size());
    requireEqualCounts("edge nodes and costs", raw_.edge_nodes.size(), raw_.edge_tables.size());
    ProblemBuilder builder(raw_.name);
    const size_t num_nodes = raw_.node_costs.size();
    std::vector<int32_t> num_strategies;
    for (size_t n = 0; n < num_nodes; ++n) {
      num_strategies.push_back(static_cast<int32_t>(raw_.node_costs[n].size()));
      builder.addNode(std::move(raw_.node_costs[n]),
                      {{raw_.intervals[n], std::move(raw_.usages[n])}});
    }
    std::unordered_map<uint64_t, CostTableId> shaped;  // (table, rows) -> id
    for (size_t e = 0; e < raw_.edge_nodes.size(); ++e) {
      const auto [u, v] = raw_.edge_nodes[e];
      const auto count = static_cast<int64_t>(num_nodes);
      if (u < 0 || v < 0 || u >= count || v >= count) {
        scanner_.fail("an edge of a problem file names a node that does not exist",
                      "edge " + std::to_string(e) + ": [" + std::to_string(u) + ", " +
                          std::to_string(v) + "] of " + std::to_string(num_nodes) + " nodes",
                      "node indices start at 0");
      }
      const int32_t rows = num_strategies[static_cast<size_t>(u)];
      const int32_t cols = num_strategies[static_cast<size_t>(v)];
      const size_t raw_table = raw_.edge_tables[e];
      const std::vector<int64_t>& costs = raw_.tables[raw_table];
      if (costs.size() != static_cast<size_t>(rows) * static_cast<size_t>(cols)) {
        scanner_.fail("an edge of a problem file has the wrong number of costs",
                      "edge " + std::to_string(e) + ": " + std::to_string(costs.size()) +
                          " costs for " + std::to_string(rows) + " x " + std::to_string(cols),
                      "one cost per pair of strategies, row by row");
      }
      const uint64_t key = (static_cast<uint64_t>(raw_table) << 32) | static_cast<uint64_t>(rows);
      auto it = shaped.find(key);
      if (it == shaped.end()) {
        it = shaped.emplace(key, builder.addTable(rows, cols, costs)).first;
      }
      builder.addEdge(ChoiceNodeId(static_cast<size_t>(u)), ChoiceNodeId(static_cast<size_t>(v)),
                      it->second);
    }
    if (raw_.usage_limit) builder.setMemoryLimit(*raw_.usage_limit);
    return std::move(builder).build();
  }

  JsonScanner scanner_;
  RawProblem raw_;
  std::unordered_multimap<uint64_t, size_t> table_of_hash_;
};

}  // namespace

Problem readContestProblem(const std::string& path, const JsonLimits& limits) {
  return ContestReader(path, limits).read();
}

}  // namespace shardwright
