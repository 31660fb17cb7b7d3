// Layer clustering against exhaustive search, and on small networks worked out by hand.
#include "interop/layer_clustering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace shardwright {
namespace {

using Score = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

// Most and sum of entering bytes and sum of squared FLOPs, from their definitions; nothing when a
// layer with two heavy operations exceeds the bound, or has none where it must have one.
std::optional<Score> scoreOf(const std::vector<ClusterOp>& ops,
                             const std::vector<ClusterValue>& values,
                             const std::vector<std::int32_t>& begins, double tolerance,
                             bool needs_heavy) {
  std::int64_t all = 0;
  for (const ClusterOp& op : ops) all += op.flops;
  Score score{0, 0, 0};
  for (std::size_t layer = 0; layer < begins.size(); ++layer) {
    const auto begin = static_cast<std::size_t>(begins[layer]);
    const std::size_t end =
        layer + 1 < begins.size() ? static_cast<std::size_t>(begins[layer + 1]) : ops.size();
    std::set<std::int32_t> entering;
    std::int64_t flops = 0;
    int num_heavy = 0;
    for (std::size_t k = begin; k < end; ++k) {
      flops += ops[k].flops;
      if (ops[k].flops * static_cast<std::int64_t>(ops.size()) >= all) ++num_heavy;
      for (const std::int32_t v : ops[k].operands) {
        const std::int32_t producer = values[static_cast<std::size_t>(v)].producer;
        if (producer >= 0 && static_cast<std::size_t>(producer) < begin) entering.insert(v);
      }
    }
    if (num_heavy > 1 && static_cast<double>(flops) * static_cast<double>(begins.size()) >
                             (1 + tolerance) * static_cast<double>(all)) {
      return std::nullopt;
    }
    if (num_heavy == 0 && needs_heavy) return std::nullopt;
    std::int64_t bytes = 0;
    for (const std::int32_t v : entering) bytes += values[static_cast<std::size_t>(v)].bytes;
    std::get<0>(score) = std::max(std::get<0>(score), bytes);
    std::get<1>(score) += bytes;
    std::get<2>(score) += flops * flops;
  }
  return score;
}

std::optional<Score> bestByExhaustion(const std::vector<ClusterOp>& ops,
                                      const std::vector<ClusterValue>& values,
                                      const ClusterOptions& options, bool needs_heavy) {
  std::optional<Score> best;
  for (unsigned mask = 0; mask < (1U << (ops.size() - 1)); ++mask) {
    std::vector<std::int32_t> begins = {0};
    for (std::size_t k = 1; k < ops.size(); ++k) {
      if ((mask >> (k - 1)) & 1U) begins.push_back(static_cast<std::int32_t>(k));
    }
    const bool keeps_marks = std::ranges::all_of(options.forced_begins, [&](std::int32_t mark) {
      return std::ranges::find(begins, mark) != begins.end();
    });
    if (!keeps_marks || begins.size() != static_cast<std::size_t>(*options.num_layers)) continue;
    const auto score = scoreOf(ops, values, begins, options.flop_tolerance, needs_heavy);
    if (score && (!best || *score < *best)) best = score;
  }
  return best;
}

TEST(LayerClustering, EqualsExhaustionOnRandomGraphs) {
  std::mt19937_64 random(11);
  int feasible = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t num_ops = 1 + random() % 10;
    std::vector<ClusterOp> ops(num_ops);
    std::vector<ClusterValue> values;
    for (std::size_t k = 0; k < num_ops; ++k) {
      ops[k].flops = static_cast<std::int64_t>(random() % 5);
      for (std::size_t v = 0; v < values.size(); ++v) {
        if (random() % 4 == 0) ops[k].operands.push_back(static_cast<std::int32_t>(v));
      }
      for (std::size_t outputs = random() % 3; outputs > 0; --outputs) {
        values.push_back({random() % 6 == 0 ? -1 : static_cast<std::int32_t>(k),
                          static_cast<std::int64_t>(random() % 4)});
      }
    }
    ClusterOptions options;
    options.num_layers = 1 + static_cast<int>(random() % num_ops);
    options.flop_tolerance = static_cast<double>(random() % 4) * 0.5;
    if (random() % 3 == 0) {
      options.forced_begins = {static_cast<std::int32_t>(random() % num_ops)};
    }
    bool needs_heavy = true;
    auto best = bestByExhaustion(ops, values, options, true);
    if (!best) {
      needs_heavy = false;
      best = bestByExhaustion(ops, values, options, false);
    }
    try {
      const LayerClustering found = clusterLayers(ops, values, options);
      ASSERT_TRUE(best.has_value()) << trial;
      EXPECT_EQ(scoreOf(ops, values, found.begins, options.flop_tolerance, needs_heavy), best)
          << trial;
      EXPECT_EQ(*std::ranges::max_element(found.entering_bytes), std::get<0>(*best));
      ++feasible;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E222");
      EXPECT_FALSE(best.has_value()) << trial;
    }
  }
  EXPECT_GT(feasible, 800);
}

// `blocks` residual blocks: the input goes through two heavy operations, whose middle tensor is
// four times as large, and is added to their result. Every block begins at a narrow place.
struct Network {
  std::vector<ClusterOp> ops;
  std::vector<ClusterValue> values;
};

Network residualBlocks(int blocks) {
  Network net;
  const auto addOp = [&](std::int64_t flops, std::vector<std::int32_t> operands,
                         std::uint64_t signature, std::int64_t bytes) {
    net.ops.push_back({flops, std::move(operands), signature});
    net.values.push_back({static_cast<std::int32_t>(net.ops.size()) - 1, bytes});
    return static_cast<std::int32_t>(net.values.size()) - 1;
  };
  std::int32_t stream = addOp(0, {}, 1, 10);
  for (int block = 0; block < blocks; ++block) {
    net.values.push_back({-1, 400});  // a weight
    const auto weight = static_cast<std::int32_t>(net.values.size()) - 1;
    const std::int32_t wide = addOp(100, {stream, weight}, 2, 40);
    const std::int32_t back = addOp(100, {wide}, 3, 10);
    stream = addOp(1, {stream, back}, 4, 10);
  }
  return net;
}

TEST(LayerClustering, FindsTheBlocksOfAResidualNetworkAndThatTheyRepeat) {
  const Network net = residualBlocks(6);
  const LayerClustering found = clusterLayers(net.ops, net.values);
  EXPECT_EQ(found.begins, (std::vector<std::int32_t>{0, 4, 7, 10, 13, 16}));
  EXPECT_EQ(found.entering_bytes, (std::vector<std::int64_t>{0, 10, 10, 10, 10, 10}));
  EXPECT_EQ(found.class_of_layer, (std::vector<std::int32_t>{0, 1, 1, 1, 1, 1}));
}

TEST(LayerClustering, EveryProductOfAPlainChainIsALayer) {
  std::vector<ClusterOp> ops = {{8, {}, 1}};
  std::vector<ClusterValue> values = {{0, 16}};
  for (std::int32_t k = 1; k < 9; ++k) {  // products and the activations between them
    ops.push_back({k % 2 == 0 ? 8 : 1, {k - 1}, k % 2 == 0 ? 1U : 2U});
    values.push_back({k, 16});
  }
  EXPECT_EQ(clusterLayers(ops, values).begins.size(), 5U);
  // Every second of the four places.
  EXPECT_EQ(clusterLayers(ops, values, {.most_layers = 3}).begins,
            (std::vector<std::int32_t>{0, 4, 8}));
  EXPECT_EQ(clusterLayers(ops, values, {.most_layers = 2}).begins.size(), 2U);
  EXPECT_EQ(clusterLayers(ops, values, {.most_layers = 1}).begins.size(), 1U);
}

TEST(LayerClustering, LayersWiredOtherwiseAreOfAnotherClass) {
  Network net = residualBlocks(4);
  net.ops[8].operands = {net.ops[7].operands[0]};  // reads the stream, not the wide tensor
  const LayerClustering found =
      clusterLayers(net.ops, net.values, {.forced_begins = {1, 4, 7, 10}});
  EXPECT_EQ(found.class_of_layer, (std::vector<std::int32_t>{0, 1, 1, 2, 1}));
}

TEST(LayerClustering, MarksAloneCutWhereTheyStand) {
  const Network net = residualBlocks(3);
  const LayerClustering found = clusterLayers(net.ops, net.values, {.forced_begins = {2, 9}});
  EXPECT_EQ(found.begins, (std::vector<std::int32_t>{0, 2, 9}));
}

TEST(LayerClustering, MarksAndANumberGoTogether) {
  const Network net = residualBlocks(4);
  const LayerClustering found = clusterLayers(
      net.ops, net.values, {.num_layers = 3, .flop_tolerance = 1, .forced_begins = {4}});
  ASSERT_EQ(found.begins.size(), 3U);
  EXPECT_NE(std::ranges::find(found.begins, 4), found.begins.end());
}

TEST(LayerClustering, RefusesMalformedLists) {
  const auto code = [](const std::vector<ClusterOp>& ops, const std::vector<ClusterValue>& values,
                       const ClusterOptions& options) -> std::string {
    try {
      clusterLayers(ops, values, options);
    } catch (const Error& error) {
      return error.code();
    }
    return "none";
  };
  const Network net = residualBlocks(2);
  EXPECT_EQ(code(net.ops, net.values, {}), "none");
  EXPECT_EQ(code({}, {}, {}), "E222");
  EXPECT_EQ(code(net.ops, net.values, {.num_layers = 99}), "E222");
  EXPECT_EQ(code(net.ops, net.values, {.num_layers = 0}), "E222");
  EXPECT_EQ(code(net.ops, net.values, {.num_layers = 1, .forced_begins = {2}}), "E222");
  EXPECT_EQ(code(net.ops, net.values, {.forced_begins = {50}}), "E222");
  EXPECT_EQ(code(net.ops, net.values, {.flop_tolerance = -1}), "E222");
  EXPECT_EQ(code({{1, {0}, 0}}, {{0, 4}}, {}), "E222");  // reads what it makes
  EXPECT_EQ(code({{-1, {}, 0}}, {}, {}), "E222");
  EXPECT_EQ(code({{1, {}, 0}}, {{0, -4}}, {}), "E222");
}

}  // namespace
}  // namespace shardwright
