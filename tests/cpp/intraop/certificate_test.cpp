#include "intraop/certificate.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "intraop/random_problem.h"
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

// Changes one thing about a correct claim so that it no longer holds.
Claim corrupt(const Problem& problem, Claim claim, int kind, std::mt19937_64& random) {
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  switch (kind % 7) {
    case 0:
      claim.cost += 1;
      break;
    case 1:
      claim.cost -= 1;
      break;
    case 2:
      claim.choice.pop_back();
      break;
    case 3:
      claim.choice[pick(claim.choice.size())] = -1;
      break;
    case 4: {
      const size_t n = pick(claim.choice.size());
      claim.choice[n] = static_cast<int32_t>(problem.nodes()[n].costs.size());
      break;
    }
    case 5:
      claim.lower_bound = claim.cost + 1;
      break;
    case 6:
      claim.proof = InfeasibilityProof::kEnumeration;
      break;
  }
  return claim;
}

TEST(Certificate, RejectsTwoHundredCorruptedAnswers) {
  int num_rejected = 0;
  int num_corrupted = 0;
  for (uint64_t seed = 0; num_corrupted < 200; ++seed) {
    std::mt19937_64 random(seed);
    testing::RandomProblemOptions shape;
    const Problem problem = testing::makeRandomProblem(random, shape);
    SolveOptions options;
    options.smallest_peak_time_s = 0.0;
    const Answer answer = solve(problem, options);
    if (answer.choice.empty()) continue;
    Claim claim;
    claim.choice = answer.choice;
    claim.cost = answer.cost;
    claim.lower_bound = answer.lower_bound;
    ASSERT_FALSE(rejectionOf(problem, claim));
    for (int kind = 0; kind < 7; ++kind, ++num_corrupted) {
      if (rejectionOf(problem, corrupt(problem, claim, kind, random))) ++num_rejected;
    }
    // One byte less than the choice needs.
    const Problem tighter = problem.withMemoryLimit(answer.peak_bytes - 1);
    if (answer.peak_bytes > 0) {
      ++num_corrupted;
      if (rejectionOf(tighter, claim)) ++num_rejected;
    }
    // A flipped choice keeps the claimed cost only when it costs the same.
    Claim flipped = claim;
    const size_t n = static_cast<size_t>(random() % flipped.choice.size());
    flipped.choice[n] =
        (flipped.choice[n] + 1) % static_cast<int32_t>(problem.nodes()[n].costs.size());
    const Evaluation found = evaluateChoice(problem, flipped.choice);
    if (!found.valid() || found.cost != claim.cost) {
      ++num_corrupted;
      if (rejectionOf(problem, flipped)) ++num_rejected;
    }
  }
  EXPECT_GE(num_corrupted, 200);
  EXPECT_EQ(num_rejected, num_corrupted);
}

}  // namespace
}  // namespace shardwright
