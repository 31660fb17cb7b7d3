#include "intraop/certificate.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "intraop/problem_family.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

// Two nodes alive together during [0, 2); node 1 also holds 5 bytes during [4, 6).
Problem makePair() {
  ProblemBuilder builder("pair");
  const ChoiceNodeId a = builder.addNode({10, 1}, {{{0, 2}, {3, 8}}});
  const ChoiceNodeId b = builder.addNode({0, kForbidden}, {{{1, 3}, {4, 0}}, {{4, 6}, {5, 0}}});
  builder.addEdge(b, a, builder.addTable(2, 2, {7, kForbidden, 0, 0}), true);
  builder.setMemoryLimit(7);
  return std::move(builder).build();
}

TEST(Certificate, RecomputesCostAndPeak) {
  const std::vector<int32_t> choice{0, 0};
  const Evaluation found = evaluateChoice(makePair(), choice);
  EXPECT_TRUE(found.valid()) << found.violation;
  EXPECT_EQ(found.cost, 17);       // 10 + 0 + 7
  EXPECT_EQ(found.peak_bytes, 7);  // 3 + 4 at point 1
  EXPECT_EQ(found.peak_time, 1);
}

TEST(Certificate, NamesWhatAChoiceBreaks) {
  const Problem problem = makePair();
  const auto violation = [&](std::vector<int32_t> choice) {
    return evaluateChoice(problem, choice).violation;
  };
  EXPECT_NE(violation({0}).find("1 entries for 2 nodes"), std::string::npos);
  EXPECT_NE(violation({0, 2}).find("no strategy 2"), std::string::npos);
  EXPECT_NE(violation({0, -1}).find("no strategy -1"), std::string::npos);
  EXPECT_NE(violation({0, 1}).find("forbidden"), std::string::npos);
  // The transposed table pairs row s_a with column s_b: entry [1, 0] is 0, peak 8 + 4.
  EXPECT_NE(violation({1, 0}).find("exceeds the limit of 7"), std::string::npos);
}

TEST(Certificate, StatusFollowsTheBound) {
  const Problem problem = makePair();
  Claim claim;
  claim.choice = {0, 0};
  claim.cost = 17;
  EXPECT_EQ(certify(problem, claim).status, SolveStatus::kFeasible);
  claim.lower_bound = 16;
  const Answer feasible = certify(problem, claim);
  EXPECT_EQ(feasible.status, SolveStatus::kFeasible);
  EXPECT_DOUBLE_EQ(feasible.gap, 1.0 / 17.0);
  claim.stop = StopCause::kTimeLimit;
  EXPECT_EQ(certify(problem, claim).status, SolveStatus::kTimeLimit);
  claim.lower_bound = 17;
  EXPECT_EQ(certify(problem, claim).status, SolveStatus::kOptimal);
}

TEST(Certificate, RaisesE921OnAFalseClaim) {
  Claim claim;
  claim.choice = {0, 0};
  claim.cost = 16;
  try {
    certify(makePair(), claim);
    FAIL() << "a wrong cost was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E921");
    EXPECT_NE(error.summary().find("claimed cost 16, recomputed 17"), std::string::npos);
  }
}

// Changes one thing about a correct claim so that it no longer holds; each is (name, change).
struct Corruption {
  const char* name;
  void (*apply)(const Problem& problem, Claim& claim, std::mt19937_64& random);
};

size_t pick(std::mt19937_64& random, size_t n) { return static_cast<size_t>(random() % n); }

const std::vector<Corruption>& corruptions() {
  using Random = std::mt19937_64;
  static const std::vector<Corruption> all = {
      {"cost one higher", [](const Problem&, Claim& claim, Random&) { claim.cost += 1; }},
      {"cost one lower",
       [](const Problem&, Claim& claim, Random&) {
         claim.cost -= 1;
         claim.lower_bound.reset();
       }},
      {"another cost", [](const Problem&, Claim& claim,
                          Random& random) { claim.cost ^= static_cast<int64_t>(random() | 1); }},
      {"cost of nothing",
       [](const Problem&, Claim& claim, Random&) {
         claim.cost = claim.cost == 0 ? std::numeric_limits<int64_t>::min() : -claim.cost;
       }},
      {"a choice too few", [](const Problem&, Claim& claim, Random&) { claim.choice.pop_back(); }},
      {"a choice too many",
       [](const Problem&, Claim& claim, Random&) { claim.choice.push_back(0); }},
      {"a negative choice",
       [](const Problem&, Claim& claim, Random& random) {
         claim.choice[pick(random, claim.choice.size())] = -1 - static_cast<int32_t>(random() % 9);
       }},
      {"a choice past the end",
       [](const Problem& problem, Claim& claim, Random& random) {
         const size_t n = pick(random, claim.choice.size());
         claim.choice[n] = static_cast<int32_t>(problem.nodes()[n].costs.size() + random() % 9);
       }},
      {"no choice, yet finished",
       [](const Problem&, Claim& claim, Random&) { claim.choice.clear(); }},
      {"bound one above the cost",
       [](const Problem&, Claim& claim, Random&) { claim.lower_bound = claim.cost + 1; }},
      {"bound far above the cost",
       [](const Problem&, Claim& claim, Random&) {
         claim.lower_bound = std::numeric_limits<int64_t>::max();
       }},
      {"a choice, yet none exists",
       [](const Problem&, Claim& claim, Random& random) {
         claim.proof = static_cast<InfeasibilityProof>(1 + random() % 4);
       }},
      {"a proof that was cut short",
       [](const Problem&, Claim& claim, Random& random) {
         claim.choice.clear();
         claim.proof = static_cast<InfeasibilityProof>(1 + random() % 4);
         claim.stop = static_cast<StopCause>(1 + random() % 3);
       }},
  };
  return all;
}

TEST(Certificate, RejectsAThousandCorruptedAnswers) {
  int num_corrupted = 0;
  int num_flipped = 0;
  int num_tightened = 0;
  int num_repriced = 0;
  int num_denied = 0;
  for (uint64_t seed = 0; num_corrupted < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = testing::makeFamilyProblem(seed);
    SolveOptions options;
    options.smallest_peak_time_s = 0.0;
    const Answer answer = solve(problem, options);
    if (answer.choice.empty()) continue;
    Claim claim;
    claim.choice = answer.choice;
    claim.cost = answer.cost;
    claim.lower_bound = answer.lower_bound;
    ASSERT_FALSE(rejectionOf(problem, claim));
    const auto expectRejected = [&](const Problem& of, const Claim& corrupted, const char* name) {
      ++num_corrupted;
      EXPECT_TRUE(rejectionOf(of, corrupted)) << name << ", seed " << seed;
      EXPECT_THROW(certify(of, corrupted), Error) << name << ", seed " << seed;
    };
    for (const Corruption& corruption : corruptions()) {
      Claim corrupted = claim;
      corruption.apply(problem, corrupted, random);
      expectRejected(problem, corrupted, corruption.name);
    }
    // A proof that none exists, where there are few enough choices to try them all.
    if (testing::findOptimum(problem).num_choices <= 1000) {
      Claim infeasible;
      infeasible.proof = static_cast<InfeasibilityProof>(1 + random() % 4);
      expectRejected(problem, infeasible, "infeasible");
      ++num_denied;
    }
    // One byte less than the choice needs.
    if (answer.peak_bytes > 0) {
      expectRejected(problem.withMemoryLimit(answer.peak_bytes - 1), claim, "memory");
      ++num_tightened;
    }
    // A flipped choice keeps the claimed cost only when it costs the same and fits.
    Claim flipped = claim;
    const size_t n = pick(random, flipped.choice.size());
    flipped.choice[n] =
        (flipped.choice[n] + 1) % static_cast<int32_t>(problem.nodes()[n].costs.size());
    const auto price = testing::priceOf(problem, flipped.choice);
    if (!price || *price != claim.cost) {
      expectRejected(problem, flipped, "flipped choice");
      ++num_flipped;
    }
    // The answer of a problem in which one chosen entry costs one more, or is forbidden.
    if (!problem.edges().empty()) {
      const ChoiceEdge& edge = problem.edges()[pick(random, problem.edges().size())];
      int32_t row = claim.choice[edge.u.index()];
      int32_t col = claim.choice[edge.v.index()];
      if (edge.transposed) std::swap(row, col);
      const CostTable& table = problem.table(edge.table);
      std::vector<int64_t> costs(table.costs().begin(), table.costs().end());
      int64_t& entry = costs[static_cast<size_t>(row) * static_cast<size_t>(table.numCols()) +
                             static_cast<size_t>(col)];
      entry = seed % 2 == 0 ? entry + 1 : kForbidden;
      ProblemBuilder builder;
      for (const ChoiceNode& node : problem.nodes()) builder.addNode(node.costs, node.memory);
      for (const ChoiceEdge& other : problem.edges()) {
        const CostTable& old = problem.table(other.table);
        builder.addEdge(other.u, other.v,
                        builder.addTable(old.numRows(), old.numCols(),
                                         &other == &edge ? costs
                                                         : std::vector<int64_t>(old.costs().begin(),
                                                                                old.costs().end())),
                        other.transposed);
      }
      expectRejected(std::move(builder).build().withMemoryLimit(problem.memoryLimitBytes()), claim,
                     "repriced edge");
      ++num_repriced;
    }
  }
  EXPECT_GE(num_corrupted, 1000);
  for (int count : {num_flipped, num_tightened, num_repriced, num_denied}) EXPECT_GE(count, 20);
}

}  // namespace
}  // namespace shardwright
