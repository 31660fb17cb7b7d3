#include "intraop/problem_family.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

namespace shardwright::testing {
namespace {

// Draws that are the same with every standard library.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double share) { return static_cast<double>(random_() >> 11) * 0x1p-53 < share; }
  template <typename T>
  T among(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

class FamilyMaker {
 public:
  explicit FamilyMaker(uint64_t seed) : dice_(seed), builder_("family " + std::to_string(seed)) {}

  Problem make() {
    const int64_t num_nodes = dice_.between(3, 8);
    most_strategies_ = num_nodes <= 4 ? 12 : num_nodes <= 6 ? 5 : 3;
    single_share_ = dice_.among({0.0, 0.1, 0.5});
    forbidden_share_ = dice_.among({0.0, 0.05, 0.2, 0.5});
    cost_unit_ = dice_.among<int64_t>({0, 1, 1, 7, 1000, int64_t{1} << 40, int64_t{1} << 48});
    negative_share_ = dice_.among({0.0, 0.2});
    outlier_share_ = dice_.among({0.0, 0.0, 0.0, 0.05});
    bytes_unit_ = dice_.among<int64_t>({0, 1, 1, 1, int64_t{1} << 45});
    num_points_ = dice_.among<int64_t>({1, 3, 12, 40});
    const int64_t equal_size = dice_.between(1, most_strategies_);
    layered_ = dice_.chance(0.2);
    for (int64_t n = 0; n < num_nodes; ++n) {
      if (layered_ && n >= 2) {
        repeatNode(n);
      } else {
        addNode(layered_                      ? equal_size
                : dice_.chance(single_share_) ? 1
                                              : dice_.between(1, most_strategies_));
      }
    }
    addGraph();
    while (dice_.chance(0.3)) addAlias();
    Problem problem = std::move(builder_).build();
    return problem.withMemoryLimit(limitFor(problem));
  }

 private:
  int64_t drawCost() {
    if (dice_.chance(forbidden_share_ / 2)) return kForbidden;
    if (dice_.chance(outlier_share_)) return (int64_t{1} << 52) + dice_.between(0, 100);
    int64_t cost = dice_.between(0, 30) * cost_unit_;
    if (cost_unit_ > 1) cost += dice_.between(0, 3);
    return dice_.chance(negative_share_) ? -cost : cost;
  }

  void addNode(int64_t size) {
    std::vector<int64_t> costs;
    for (int64_t s = 0; s < size; ++s) costs.push_back(drawCost());
    std::vector<MemoryPiece> memory;
    const int64_t num_pieces = dice_.among<int64_t>({0, 1, 1, 2, 3});
    for (int64_t p = 0; p < num_pieces; ++p) {
      const int64_t begin = dice_.between(-2, num_points_);
      MemoryPiece piece{{begin, begin + dice_.between(-1, num_points_)}, {}};
      for (int64_t s = 0; s < size; ++s) {
        piece.bytes.push_back(dice_.between(0, 12) * bytes_unit_);
      }
      memory.push_back(std::move(piece));
    }
    sizes_.push_back(size);
    costs_.push_back(costs);
    memory_.push_back(memory);
    builder_.addNode(std::move(costs), std::move(memory));
  }

  // The node two before, moved in time: layers of two nodes.
  void repeatNode(int64_t n) {
    const auto source = static_cast<size_t>(n - 2);
    std::vector<MemoryPiece> memory = memory_[source];
    for (MemoryPiece& piece : memory) {
      ++piece.interval.begin;
      ++piece.interval.end;
    }
    sizes_.push_back(sizes_[source]);
    costs_.push_back(costs_[source]);
    memory_.push_back(memory);
    builder_.addNode(costs_[source], std::move(memory));
  }

  void addEdge(int64_t u, int64_t v) {
    const int64_t rows = sizes_[static_cast<size_t>(u)];
    const int64_t cols = sizes_[static_cast<size_t>(v)];
    const bool transposed = dice_.chance(0.3);
    if (last_table_.isValid() && dice_.chance(layered_ ? 0.8 : 0.2)) {
      for (const bool turned : {false, true}) {
        if (last_rows_ == (turned ? cols : rows) && last_cols_ == (turned ? rows : cols)) {
          builder_.addEdge(node(u), node(v), last_table_, turned);
          return;
        }
      }
    }
    std::vector<int64_t> costs;
    // A functional table: every row has one column that may be chosen.
    const bool functional = dice_.chance(0.1);
    const bool equal = dice_.chance(0.1);
    for (int64_t i = 0; i < rows * cols; ++i) {
      costs.push_back(equal && i > 0                   ? costs.front()
                      : dice_.chance(forbidden_share_) ? kForbidden
                                                       : drawCost());
    }
    if (functional) {
      std::fill(costs.begin(), costs.end(), kForbidden);
      const int64_t stride = transposed ? rows : cols;
      for (int64_t r = 0; r < rows * cols / stride; ++r) {
        costs[static_cast<size_t>(r * stride + dice_.between(0, stride - 1))] = drawCost();
      }
    }
    last_rows_ = transposed ? cols : rows;
    last_cols_ = transposed ? rows : cols;
    last_table_ = builder_.addTable(static_cast<int32_t>(last_rows_),
                                    static_cast<int32_t>(last_cols_), std::move(costs));
    builder_.addEdge(node(u), node(v), last_table_, transposed);
  }

  void addGraph() {
    const auto n = static_cast<int64_t>(sizes_.size());
    switch (dice_.between(0, 6)) {
      case 0:
        break;
      case 1:  // chain or, closed, cycle
        for (int64_t i = 0; i + 1 < n; ++i) addEdge(i, i + 1);
        if (dice_.chance(0.5)) addEdge(n - 1, 0);
        break;
      case 2:  // hub
        for (int64_t i = 1; i < n; ++i) addEdge(0, i);
        break;
      case 3:  // clique
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = i + 1; j < n; ++j) addEdge(i, j);
        }
        break;
      case 4:  // ladder
        for (int64_t i = 0; i + 2 < n; ++i) {
          addEdge(i, i + 1);
          addEdge(i, i + 2);
        }
        break;
      default: {
        const double density = dice_.among({0.2, 0.4, 0.8});
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            if (dice_.chance(i < j ? density : i == j ? 0.03 : 0.1)) addEdge(i, j);
          }
        }
      }
    }
    while (dice_.chance(0.3)) addEdge(dice_.between(0, n - 1), dice_.between(0, n - 1));
  }

  void addAlias() {
    const int64_t last = static_cast<int64_t>(sizes_.size()) - 1;
    const int64_t u = dice_.between(0, last);
    const int64_t v = dice_.between(0, last);
    if (u == v) return;
    const auto labels = [&](int64_t of) {
      std::vector<int64_t> result;
      for (int64_t s = 0; s < sizes_[static_cast<size_t>(of)]; ++s) {
        result.push_back(dice_.between(0, 3));
      }
      return result;
    };
    builder_.addAlias(node(u), node(v), labels(u), labels(v));
  }

  std::optional<int64_t> limitFor(const Problem& problem) {
    std::vector<int32_t> choice;
    for (int64_t size : sizes_) choice.push_back(static_cast<int32_t>(dice_.between(0, size - 1)));
    Int128 peak = 0;
    Int128 most = 0;
    for (const ChoiceNode& at : problem.nodes()) {
      for (const MemoryPiece& piece : at.memory) {
        most += *std::max_element(piece.bytes.begin(), piece.bytes.end());
      }
    }
    peak = peakOf(problem, choice);
    switch (dice_.between(0, 6)) {
      case 0:
        return std::nullopt;
      case 1:
        return static_cast<int64_t>(most);
      case 2:
        return 0;
      case 3:
        return static_cast<int64_t>(most / 3);
      case 4:
        return static_cast<int64_t>(std::max<Int128>(0, peak - 1));
      default:
        return static_cast<int64_t>(peak);
    }
  }

  static ChoiceNodeId node(int64_t index) { return ChoiceNodeId(static_cast<size_t>(index)); }

 public:
  static Int128 peakOf(const Problem& problem, const std::vector<int32_t>& choice) {
    Int128 peak = 0;
    for (const ChoiceNode& first : problem.nodes()) {
      for (const MemoryPiece& at : first.memory) {
        if (at.interval.end <= at.interval.begin) continue;
        Int128 alive = 0;
        for (size_t n = 0; n < choice.size(); ++n) {
          for (const MemoryPiece& piece : problem.nodes()[n].memory) {
            if (piece.interval.begin <= at.interval.begin &&
                at.interval.begin < piece.interval.end) {
              alive += piece.bytes[static_cast<size_t>(choice[n])];
            }
          }
        }
        peak = std::max(peak, alive);
      }
    }
    return peak;
  }

 private:
  Dice dice_;
  ProblemBuilder builder_;
  int64_t most_strategies_ = 0;
  double single_share_ = 0.0;
  double forbidden_share_ = 0.0;
  int64_t cost_unit_ = 0;
  double negative_share_ = 0.0;
  double outlier_share_ = 0.0;
  int64_t bytes_unit_ = 0;
  int64_t num_points_ = 0;
  bool layered_ = false;
  std::vector<int64_t> sizes_;
  std::vector<std::vector<int64_t>> costs_;
  std::vector<std::vector<MemoryPiece>> memory_;
  CostTableId last_table_;
  int64_t last_rows_ = 0;
  int64_t last_cols_ = 0;
};

// Cost without the memory rule.
std::optional<Int128> sumOf(const Problem& problem, const std::vector<int32_t>& choice) {
  Int128 total = 0;
  for (size_t n = 0; n < choice.size(); ++n) {
    const int64_t cost = problem.nodes()[n].costs[static_cast<size_t>(choice[n])];
    if (cost == kForbidden) return std::nullopt;
    total += cost;
  }
  for (const ChoiceEdge& edge : problem.edges()) {
    const int32_t u = choice[edge.u.index()];
    const int32_t v = choice[edge.v.index()];
    const CostTable& table = problem.table(edge.table);
    const int64_t cost = edge.transposed ? table.at(v, u) : table.at(u, v);
    if (cost == kForbidden) return std::nullopt;
    total += cost;
  }
  return total;
}

}  // namespace

Problem makeFamilyProblem(uint64_t seed) { return FamilyMaker(seed).make(); }

std::optional<Int128> priceOf(const Problem& problem, const std::vector<int32_t>& choice) {
  const auto& limit = problem.memoryLimitBytes();
  if (limit && FamilyMaker::peakOf(problem, choice) > *limit) return std::nullopt;
  return sumOf(problem, choice);
}

Optimum findOptimum(const Problem& problem) {
  Optimum best;
  std::vector<int32_t> choice(problem.numNodes(), 0);
  while (true) {
    ++best.num_choices;
    if (const auto cost = sumOf(problem, choice)) {
      const Int128 peak = FamilyMaker::peakOf(problem, choice);
      if (!best.least_peak || peak < *best.least_peak) best.least_peak = peak;
      const bool fits = !problem.memoryLimitBytes() || peak <= *problem.memoryLimitBytes();
      if (fits && (!best.cost || *cost < *best.cost)) best.cost = *cost;
    }
    size_t n = 0;
    while (n < choice.size()) {
      if (static_cast<size_t>(++choice[n]) < problem.nodes()[n].costs.size()) break;
      choice[n++] = 0;
    }
    if (n == choice.size()) return best;
  }
}

std::string describe(const Problem& problem) {
  std::ostringstream text;
  const auto list = [&](std::span<const int64_t> values) {
    text << "[";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text << ", ";
      if (values[i] == kForbidden) {
        text << "x";
      } else {
        text << values[i];
      }
    }
    text << "]";
  };
  text << problem.name() << ", limit ";
  if (problem.memoryLimitBytes()) {
    text << *problem.memoryLimitBytes();
  } else {
    text << "none";
  }
  for (size_t n = 0; n < problem.numNodes(); ++n) {
    text << "\n  node " << n << " costs ";
    list(problem.nodes()[n].costs);
    for (const MemoryPiece& piece : problem.nodes()[n].memory) {
      text << " [" << piece.interval.begin << ", " << piece.interval.end << ") bytes ";
      list(piece.bytes);
    }
  }
  for (const ChoiceEdge& edge : problem.edges()) {
    const CostTable& table = problem.table(edge.table);
    text << "\n  edge " << edge.u.index() << " " << edge.v.index()
         << (edge.transposed ? " transposed" : "") << ", table " << table.numRows() << " x "
         << table.numCols() << " ";
    list(table.costs());
  }
  return text.str();
}

TEST(ProblemFamily, OptimumOfTwoNodesByHand) {
  ProblemBuilder builder;
  const ChoiceNodeId a = builder.addNode({1, 2}, {{{0, 2}, {9, 1}}});
  const ChoiceNodeId b = builder.addNode({4, 3}, {{{1, 3}, {1, 1}}});
  builder.addEdge(b, a, builder.addTable(2, 2, {0, kForbidden, 9, 0}), true);
  const Problem problem = std::move(builder).build();
  // (0, 0) costs 5 at 10 bytes, (1, 1) costs 5 at 2; (1, 0) costs 15; (0, 1) is forbidden.
  EXPECT_TRUE(findOptimum(problem).cost == 5);
  EXPECT_TRUE(findOptimum(problem).least_peak == 2);
  EXPECT_TRUE(findOptimum(problem.withMemoryLimit(2)).cost == 5);
  EXPECT_FALSE(findOptimum(problem.withMemoryLimit(1)).cost);
  EXPECT_TRUE(priceOf(problem, {1, 0}) == 15);
  EXPECT_FALSE(priceOf(problem, {0, 1}));
  EXPECT_FALSE(priceOf(problem.withMemoryLimit(9), {0, 0}));
}

// A generator that makes nothing but easy problems would prove nothing.
TEST(ProblemFamily, EveryTraitOccurs) {
  int infeasible = 0, unlimited = 0, bound_by_memory = 0, parallel = 0, self = 0, single = 0;
  int negative = 0, huge = 0, shared = 0;
  const int count = 1000;
  for (uint64_t seed = 0; seed < count; ++seed) {
    const Problem problem = makeFamilyProblem(seed);
    EXPECT_EQ(describe(problem), describe(makeFamilyProblem(seed)));
    EXPECT_GE(problem.numNodes(), 3u);
    EXPECT_LE(problem.numNodes(), 8u);
    const Optimum found = findOptimum(problem);
    if (!found.cost) ++infeasible;
    if (!problem.memoryLimitBytes()) ++unlimited;
    const Optimum free = findOptimum(problem.withMemoryLimit(std::nullopt));
    if (found.cost && *found.cost != *free.cost) ++bound_by_memory;
    std::vector<std::pair<size_t, size_t>> pairs;
    for (const ChoiceEdge& edge : problem.edges()) {
      if (edge.u == edge.v) ++self;
      pairs.push_back(std::minmax({edge.u.index(), edge.v.index()}));
    }
    std::sort(pairs.begin(), pairs.end());
    if (std::adjacent_find(pairs.begin(), pairs.end()) != pairs.end()) ++parallel;
    if (problem.tables().size() < problem.edges().size()) ++shared;
    for (const ChoiceNode& node : problem.nodes()) {
      if (node.costs.size() == 1) ++single;
      for (int64_t cost : node.costs) {
        if (cost < 0) ++negative;
        if (cost != kForbidden && cost > int64_t{1} << 40) ++huge;
      }
    }
  }
  for (int seen :
       {infeasible, unlimited, bound_by_memory, parallel, self, single, negative, huge, shared}) {
    EXPECT_GE(seen, count / 20);
  }
  EXPECT_LE(infeasible, count * 2 / 3);
}

}  // namespace shardwright::testing
