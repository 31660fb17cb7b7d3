#include "intraop/random_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace shardwright::testing {
namespace {

int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

bool chance(std::mt19937_64& random, double share) {
  return std::uniform_real_distribution<double>(0.0, 1.0)(random) < share;
}

int64_t costOf(const Problem& problem, const std::vector<int32_t>& choice) {
  int64_t total = 0;
  for (size_t n = 0; n < choice.size(); ++n) {
    const int64_t cost = problem.nodes()[n].costs[static_cast<size_t>(choice[n])];
    if (cost == kForbidden) return kForbidden;
    total += cost;
  }
  for (const ChoiceEdge& edge : problem.edges()) {
    int32_t row = choice[edge.u.index()];
    int32_t col = choice[edge.v.index()];
    if (edge.transposed) std::swap(row, col);
    const int64_t cost = problem.table(edge.table).at(row, col);
    if (cost == kForbidden) return kForbidden;
    total += cost;
  }
  return total;
}

constexpr int64_t kLastPoint = 12;

int64_t peakOf(const Problem& problem, const std::vector<int32_t>& choice) {
  int64_t peak = 0;
  for (int64_t point = 0; point <= kLastPoint; ++point) {
    int64_t alive = 0;
    for (size_t n = 0; n < choice.size(); ++n) {
      for (const MemoryPiece& piece : problem.nodes()[n].memory) {
        if (piece.interval.begin <= point && point < piece.interval.end) {
          alive += piece.bytes[static_cast<size_t>(choice[n])];
        }
      }
    }
    peak = std::max(peak, alive);
  }
  return peak;
}

}  // namespace

Problem makeRandomProblem(std::mt19937_64& random, const RandomProblemOptions& options) {
  ProblemBuilder builder("random");
  const int64_t num_nodes = pick(random, options.min_nodes, options.max_nodes);
  std::vector<int64_t> sizes;
  std::vector<ChoiceNodeId> ids;
  int64_t least_total = 0;
  int64_t most_total = 0;
  for (int64_t n = 0; n < num_nodes; ++n) {
    const int64_t size =
        chance(random, 0.1) ? 1 : pick(random, options.min_strategies, options.max_strategies);
    std::vector<int64_t> costs;
    for (int64_t s = 0; s < size; ++s) {
      costs.push_back(chance(random, options.forbidden_share / 3)
                          ? kForbidden
                          : pick(random, -options.max_cost / 5, options.max_cost));
    }
    std::vector<MemoryPiece> memory;
    const int64_t num_pieces = pick(random, 0, 2);
    for (int64_t p = 0; p < num_pieces; ++p) {
      const int64_t begin = pick(random, 0, kLastPoint - 1);
      MemoryPiece piece{{begin, pick(random, begin, kLastPoint)}, {}};
      for (int64_t s = 0; s < size; ++s) piece.bytes.push_back(pick(random, 0, 20));
      least_total += *std::min_element(piece.bytes.begin(), piece.bytes.end());
      most_total += *std::max_element(piece.bytes.begin(), piece.bytes.end());
      memory.push_back(std::move(piece));
    }
    sizes.push_back(size);
    ids.push_back(builder.addNode(std::move(costs), std::move(memory)));
  }
  for (size_t u = 0; u < ids.size(); ++u) {
    for (size_t v = 0; v < ids.size(); ++v) {
      const double probability = u < v ? options.edge_probability : options.edge_probability * 0.15;
      if (!chance(random, probability)) continue;
      std::vector<int64_t> costs;
      const bool transposed = chance(random, 0.3);
      const bool coarse = chance(random, 0.3);  // few distinct values: ties
      for (int64_t i = 0; i < sizes[u] * sizes[v]; ++i) {
        costs.push_back(chance(random, options.forbidden_share)
                            ? kForbidden
                            : pick(random, 0, coarse ? 2 : options.max_cost));
      }
      const auto rows = static_cast<int32_t>(transposed ? sizes[v] : sizes[u]);
      const auto cols = static_cast<int32_t>(transposed ? sizes[u] : sizes[v]);
      builder.addEdge(ids[u], ids[v], builder.addTable(rows, cols, std::move(costs)), transposed);
    }
  }
  if (options.with_limit) {
    builder.setMemoryLimit(pick(random, least_total / 4, (least_total + most_total) / 2));
  }
  return std::move(builder).build();
}

BruteForce solveByBruteForce(const Problem& problem) {
  BruteForce best;
  std::vector<int32_t> choice(problem.numNodes(), 0);
  while (true) {
    const int64_t cost = costOf(problem, choice);
    if (cost != kForbidden) {
      const int64_t peak = peakOf(problem, choice);
      if (!best.least_peak || peak < *best.least_peak) best.least_peak = peak;
      const bool fits = !problem.memoryLimitBytes() || peak <= *problem.memoryLimitBytes();
      if (fits && (!best.cost || cost < *best.cost)) best.cost = cost;
    }
    size_t n = 0;
    while (n < choice.size()) {
      if (static_cast<size_t>(++choice[n]) < problem.nodes()[n].costs.size()) break;
      choice[n++] = 0;
    }
    if (n == choice.size()) return best;
  }
}

TEST(RandomProblem, BruteForceFindsTheCheaperOfTwo) {
  ProblemBuilder builder;
  const ChoiceNodeId a = builder.addNode({1, 2});
  const ChoiceNodeId b = builder.addNode({4, 3});
  builder.addEdge(a, b, builder.addTable(2, 2, {0, kForbidden, 9, 0}));
  // 1 + 4 + 0 and 2 + 3 + 0 are 5; 2 + 4 + 9 is 15; 1 + 3 is forbidden.
  EXPECT_EQ(solveByBruteForce(std::move(builder).build()).cost, 5);
}

}  // namespace shardwright::testing
