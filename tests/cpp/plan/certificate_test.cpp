#include "plan/certificate.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "intraop/model.h"
#include "intraop/solve.h"
#include "plan/small_graph.h"
#include "plan/validate.h"
#include "sharding/conversion_points.h"
#include "sharding/registry.h"

namespace shardwright {
namespace {

const ShardingSpec kWhole = {Placement::replicate()};
const ShardingSpec kRows = {Placement::shard(0)};
const ShardingSpec kCols = {Placement::shard(1)};
const ShardingSpec kPending = {Placement::partial(ReduceOp::kSum)};

DeviceMesh byteMesh(int size) {
  return DeviceMesh({size}, {AxisCost{1, 1}}, CollectiveConstants{});
}

// y = x w, with x [8, 4] and w [4, 4].
class OneProduct : public testing::Test {
 protected:
  OneProduct() : graph_(make()), sharded_(graph_, builtinRules()) {}

  static Graph make() {
    SmallGraph graph;
    const ValueRef x = graph.input("x", {8, 4});
    const ValueRef w = graph.input("w", {4, 4}, InputKind::kParameter);
    graph.result(graph.mm("y", x, w));
    return graph.build();
  }

  Strategy read(ShardingSpec x, ShardingSpec w, ShardingSpec y) const {
    return checkedStrategy(sharded_, {2},
                           {NodeId(2), {std::move(x), std::move(w)}, {std::move(y)}});
  }
  void expectRefused(const ShardingSpec& x, const ShardingSpec& w, const ShardingSpec& y) const {
    try {
      read(x, w, y);
      ADD_FAILURE() << "must be refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E314");
    }
  }
  StagePlan stage(ShardingSpec x, ShardingSpec w, ShardingSpec x_used, ShardingSpec w_used,
                  ShardingSpec y) const {
    return {{2},
            {0, 1},
            {{NodeId(0), {}, {std::move(x)}},
             {NodeId(1), {}, {std::move(w)}},
             {NodeId(2), {std::move(x_used), std::move(w_used)}, {std::move(y)}}},
            {}};
  }

  Graph graph_;
  ShardedGraph sharded_;
};

TEST_F(OneProduct, SplitsOfRowsColumnsAndContractionAreValid) {
  EXPECT_EQ(read(kWhole, kWhole, kWhole).compute_shards, 1);
  EXPECT_EQ(read(kRows, kWhole, kRows).compute_shards, 2);
  EXPECT_EQ(read(kWhole, kCols, kCols).compute_shards, 2);
  EXPECT_EQ(read(kCols, kRows, kPending).compute_shards, 2);
}

TEST_F(OneProduct, PendingSumPassesThroughOneOperandWithoutDividingWork) {
  EXPECT_EQ(read(kPending, kWhole, kPending).compute_shards, 1);
  expectRefused(kPending, kPending, kPending);  // a product of sums is no sum of products
}

TEST_F(OneProduct, ContractionWithoutTheSumIsRefused) { expectRefused(kCols, kRows, kWhole); }

TEST_F(OneProduct, TwoFactorsOnOneAxisAreRefused) { expectRefused(kRows, kCols, kRows); }

TEST_F(OneProduct, OperandThatIsNotSplitWithItsFactorIsRefused) {
  expectRefused(kCols, kWhole, kPending);
  expectRefused(kWhole, kWhole, kRows);
}

TEST_F(OneProduct, PendingSumThatTheOpDidNotLeaveIsRefused) {
  expectRefused(kRows, kWhole, kPending);
}

TEST_F(OneProduct, ContractionCostsOneAllReduceOfTheResult) {
  // y is 8 * 4 * 4 = 128 bytes: 1 + 2 * 1/2 * 128 = 129 us.
  const CertifiedCost cost = certifyPlan(sharded_, stage(kCols, kRows, kCols, kRows, kPending),
                                         byteMesh(2), Cluster{}, {});
  EXPECT_EQ(cost.cost_units, 129 * 1000);
  EXPECT_DOUBLE_EQ(cost.certificate.communication_us, 129);
  ASSERT_EQ(cost.certificate.collectives.size(), 1U);
  EXPECT_EQ(cost.certificate.collectives.at("all_reduce").count, 1);
  EXPECT_DOUBLE_EQ(cost.certificate.collectives.at("all_reduce").ring_bytes_per_device, 128);
}

TEST_F(OneProduct, StatusIsOptimalOnlyWhenTheBoundIsMet) {
  CertifyOptions options;
  options.lower_bound = 129 * 1000;
  const StagePlan plan = stage(kCols, kRows, kCols, kRows, kPending);
  EXPECT_EQ(certifyPlan(sharded_, plan, byteMesh(2), Cluster{}, options).certificate.status,
            "optimal");
  options.lower_bound = 129 * 1000 - 1;
  const Certificate below =
      certifyPlan(sharded_, plan, byteMesh(2), Cluster{}, options).certificate;
  EXPECT_EQ(below.status, "feasible");
  EXPECT_GT(below.gap, 0);
  options.lower_bound = 129 * 1000 + 1;
  EXPECT_THROW(certifyPlan(sharded_, plan, byteMesh(2), Cluster{}, options), Error);
}

TEST_F(OneProduct, PeakCountsCopiesMadeForOneConsumer) {
  // Stored shards x 64 and w 32; w gathered to 64 for y; y whole rows 64. At y: 64 + 32 + 64 + 64.
  // The result is gathered: y shard 64 and its copy 128 after w's copy is gone: 64 + 32 + 64 + 128.
  const CertifiedCost cost =
      certifyPlan(sharded_, stage(kRows, kRows, kRows, kWhole, kRows), byteMesh(2), Cluster{}, {});
  EXPECT_EQ(cost.certificate.peak_memory_bytes, 64 + 32 + 64 + 128);
  EXPECT_EQ(cost.certificate.at_peak.parameters, 32);
  EXPECT_EQ(cost.certificate.at_peak.other, 64);
  EXPECT_EQ(cost.certificate.at_peak.activations, 64 + 128);
}

TEST_F(OneProduct, PlanThatLeavesAnOpOutIsRefused) {
  StagePlan plan = stage(kRows, kWhole, kRows, kWhole, kRows);
  plan.ops.pop_back();
  EXPECT_THROW(certifyPlan(sharded_, plan, byteMesh(2), Cluster{}, {}), Error);
}

TEST_F(OneProduct, InputWithAPendingSumIsRefused) {
  StagePlan plan = stage(kPending, kWhole, kPending, kWhole, kPending);
  EXPECT_THROW(certifyPlan(sharded_, plan, byteMesh(2), Cluster{}, {}), Error);
}

// Every strategy of every op of the solver's model reads back as valid: the checker knows the rules
// from their factors, the enumerator from its search.
TEST_F(OneProduct, EnumeratedStrategiesReadBackAsTheyWereMade) {
  for (const std::vector<int>& mesh : {std::vector<int>{2}, std::vector<int>{2, 2}}) {
    for (std::size_t node = 0; node < 3; ++node) {
      for (const Strategy& made : enumerateStrategies(sharded_, NodeId(node), mesh)) {
        const Strategy read_back =
            checkedStrategy(sharded_, mesh, {NodeId(node), made.operands, made.outputs});
        EXPECT_EQ(read_back.compute_shards, made.compute_shards);
      }
    }
  }
}

TEST_F(OneProduct, SearchAndCertificateAgreeOnCostAndNearlyOnPeak) {
  const DeviceMesh mesh = byteMesh(2);
  ModelOptions options;
  options.shard_all_products = true;
  const Model model(sharded_, mesh, Cluster{}, options);
  const Answer answer = solve(model.problem());
  const CertifiedCost cost =
      certifyPlan(sharded_, model.stagePlan(answer.choice), mesh, Cluster{}, {});
  EXPECT_EQ(cost.cost_units, answer.cost);
  EXPECT_GE(cost.certificate.peak_memory_bytes, answer.peak_bytes);
}

// Forward h = x w, backward g = h w, and the sum of g over microbatches, which is returned.
class OneStage : public testing::Test {
 protected:
  explicit OneStage(bool receives = false)
      : graph_(make(receives)), sharded_(graph_, builtinRules()) {}

  static Graph make(bool receives) {
    SmallGraph graph;
    const ValueRef x = graph.input("x", {8, 4});
    const ValueRef w = graph.input("w", {4, 4}, InputKind::kParameter);
    const ValueRef h = graph.mm("h", x, w);
    const ValueRef g = graph.mm("g", h, w, Phase::kBackward);
    graph.result(graph.op("sum", "shardwright.accumulate.default", {g}, {8, 4}, Phase::kUpdate));
    return receives ? graph.buildReceiving(x) : graph.build();
  }
  Certificate certify(int in_flight, const ShardingSpec& rows = kWhole) const {
    StagePlan plan = {{1},
                      {0},
                      {{NodeId(0), {}, {rows}},
                       {NodeId(1), {}, {kWhole}},
                       {NodeId(2), {rows, kWhole}, {rows}},
                       {NodeId(3), {rows, kWhole}, {rows}},
                       {NodeId(4), {rows}, {rows}}},
                      {}};
    for (const ConversionPoint& point : conversionPoints(sharded_)) {
      plan.conversions.push_back(
          {point.value, point.group, point.value.node == NodeId(1) ? kWhole : rows, false});
    }
    CertifyOptions options;
    options.microbatches_in_flight = in_flight;
    return certifyPlan(sharded_, plan, byteMesh(1), Cluster{}, options).certificate;
  }

  Graph graph_;
  ShardedGraph sharded_;
};

TEST_F(OneStage, MicrobatchesInFlightKeepWhatBackwardReads) {
  // x 128 and w 64 stay, the sum 128 is there throughout; at g: h 128 and g 128.
  EXPECT_EQ(certify(1).peak_memory_bytes, 128 + 64 + 128 + 128 + 128);
  // Two more h; neither x nor w, neither the sum nor g.
  const Certificate three = certify(3);
  EXPECT_EQ(three.peak_memory_bytes, 128 + 64 + 128 + 128 + 128 + 2 * 128);
  EXPECT_EQ(three.peak_node, "g");
  EXPECT_EQ(three.at_peak.activations, 3 * 128);
  EXPECT_EQ(three.at_peak.gradients, 2 * 128);
  EXPECT_EQ(three.at_peak.other, 128);
}

TEST_F(OneStage, NoMicrobatchWaitsInTheUpdate) {
  const Certificate three = certify(3);
  EXPECT_EQ(three.memory_timeline.front().memory.activations, 2 * 128);
  EXPECT_EQ(three.memory_timeline.back().phase, Phase::kUpdate);
  EXPECT_EQ(three.memory_timeline.back().memory.activations, 0);
  EXPECT_EQ(three.memory_timeline.back().memory.total(), 128 + 64 + 128);
}

TEST_F(OneStage, SearchCountsTheSameMicrobatches) {
  const DeviceMesh mesh = byteMesh(1);
  for (const int in_flight : {1, 3}) {
    ModelOptions options;
    options.microbatches_in_flight = in_flight;
    const Answer answer = solve(Model(sharded_, mesh, Cluster{}, options).problem());
    EXPECT_EQ(answer.peak_bytes, certify(in_flight).peak_memory_bytes);
  }
}

// Two layers with their backward, parameters in parts: gathered once and kept, or twice.
TEST(InFlight, SearchNeverHoldsMoreThanTheCertificate) {
  SmallGraph small;
  const ValueRef x = small.input("x", {8, 8});
  const ValueRef w = small.input("w", {8, 8}, InputKind::kParameter);
  const ValueRef v = small.input("v", {8, 8}, InputKind::kParameter);
  const ValueRef h = small.mm("h", x, w);
  const ValueRef a = small.op("a", "aten.relu.default", {h}, {8, 8});
  const ValueRef y = small.mm("y", a, v);
  const ValueRef dy = small.op("dy", "aten.relu.default", {y}, {8, 8}, Phase::kBackward);
  const ValueRef da = small.mm("da", dy, v, Phase::kBackward);
  const ValueRef dv = small.mm("dv", a, dy, Phase::kBackward);
  const ValueRef dh = small.op("dh", "aten.mul.Tensor", {da, h}, {8, 8}, Phase::kBackward);
  const ValueRef dw = small.mm("dw", x, dh, Phase::kBackward);
  for (const ValueRef& gradient : {dv, dw}) {
    small.result(small.op("sum" + std::to_string(gradient.node.index()),
                          "shardwright.accumulate.default", {gradient}, {8, 8}, Phase::kUpdate));
  }
  const Graph graph = small.build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh(2);
  std::set<std::int64_t> peaks;
  for (const int in_flight : {1, 2, 5}) {
    ModelOptions options;
    options.microbatches_in_flight = in_flight;
    options.shard_all_products = true;
    const Model model(sharded, mesh, Cluster{}, options);
    for (std::int64_t limit = 1024; limit <= 8192; limit += 128) {
      const Answer answer = solve(model.problem().withMemoryLimit(limit));
      if (answer.choice.empty()) continue;
      CertifyOptions certify_options;
      certify_options.microbatches_in_flight = in_flight;
      const CertifiedCost cost =
          certifyPlan(sharded, model.stagePlan(answer.choice), mesh, Cluster{}, certify_options);
      EXPECT_LE(answer.peak_bytes, cost.certificate.peak_memory_bytes) << in_flight;
      EXPECT_EQ(answer.cost, cost.cost_units);
      peaks.insert(answer.peak_bytes);
    }
  }
  EXPECT_GE(peaks.size(), 6U);
}

// h is read by the first part of backward, which makes e for the late part.
TEST(InFlight, WhatWaitsForTheLatePartOfBackwardIsCountedToo) {
  std::int64_t peaks[2] = {};
  for (const bool has_late_part : {false, true}) {
    SmallGraph small;
    const ValueRef x = small.input("x", {8, 4});
    const ValueRef w = small.input("w", {4, 4}, InputKind::kParameter);
    const ValueRef h = small.mm("h", x, w);
    const ValueRef e = small.mm("e", h, w, Phase::kBackward);
    const ValueRef g = small.mm("g", e, w, Phase::kBackward);
    if (has_late_part) small.setLate(g);
    small.result(small.op("sum", "shardwright.accumulate.default", {g}, {8, 4}, Phase::kUpdate));
    const Graph graph = small.build();
    const ShardedGraph sharded(graph, builtinRules());
    const DeviceMesh mesh = byteMesh(1);
    ModelOptions options;
    options.microbatches_in_flight = 3;
    const Model model(sharded, mesh, Cluster{}, options);
    const Answer answer = solve(model.problem());
    CertifyOptions certify_options;
    certify_options.microbatches_in_flight = 3;
    const CertifiedCost cost =
        certifyPlan(sharded, model.stagePlan(answer.choice), mesh, Cluster{}, certify_options);
    EXPECT_EQ(answer.peak_bytes, cost.certificate.peak_memory_bytes);
    peaks[has_late_part ? 1 : 0] = cost.certificate.peak_memory_bytes;
  }
  // x 128, w 64, the sum 128, and h and e or e and g, 128 each; then two more h, or h and e.
  EXPECT_EQ(peaks[0], 128 + 64 + 128 + 2 * 128 + 2 * 128);
  EXPECT_EQ(peaks[1], 128 + 64 + 128 + 2 * 128 + 2 * (128 + 128));
}

class ReceivingStage : public OneStage {
 protected:
  ReceivingStage() : OneStage(true) {}
};

TEST_F(ReceivingStage, WhatEachMicrobatchReceivesIsKeptForEach) {
  EXPECT_EQ(certify(1).peak_memory_bytes, 576);
  EXPECT_EQ(certify(3).peak_memory_bytes, 576 + 2 * (128 + 128));
}

}  // namespace
}  // namespace shardwright
