#include "interop/stage_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "interop/boundary_specs.h"
#include "interop/stage_dp.h"
#include "mesh/submesh.h"
#include "sharding/transfer.h"

namespace shardwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Cluster twoHostsOfTwo() {
  Cluster cluster;
  cluster.num_hosts = 2;
  cluster.devices_per_host = 2;
  cluster.intra_host = {100, 2, 1};
  cluster.inter_host = {10, 5, 1};
  return cluster;
}

TEST(StagePorts, ALayoutIsWhatEachPositionHolds) {
  const ShardingSpec both = {Placement::shard(0, 0), Placement::shard(0, 1)};
  EXPECT_EQ(portLayout({2, 2}, both, 1), (PortLayout{0, 4, 1, 4, 2, 4, 3, 4}));
  EXPECT_EQ(portLayout({4}, {Placement::shard(0)}, 1), portLayout({2, 2}, both, 1));
  // The other order of axes puts other blocks on positions 1 and 2.
  const ShardingSpec swapped = {Placement::shard(0, 1), Placement::shard(0, 0)};
  EXPECT_EQ(portLayout({2, 2}, swapped, 1), (PortLayout{0, 4, 2, 4, 1, 4, 3, 4}));
}

TEST(StagePorts, EqualLayoutsAreOnePort) {
  StagePorts ports(2);
  const int whole = ports.portOf(1, {2}, replicatedSpec(1), 2);
  EXPECT_NE(whole, 0);
  EXPECT_EQ(ports.portOf(1, {2, 1}, replicatedSpec(2), 2), whole);
  EXPECT_NE(ports.portOf(1, {2}, {Placement::shard(0)}, 2), whole);
  EXPECT_EQ(ports.ports(0).size(), 1U);
  EXPECT_EQ(ports.numPorts(), 3);
}

TEST(StagePorts, ThePriceIsThatOfBothTransfers) {
  const Cluster cluster = twoHostsOfTwo();
  const StagePorts::Port split{{2}, {Placement::shard(0)}, 2};
  const StagePorts::Port whole{{2}, replicatedSpec(1), 2};
  const BoundaryTensors tensors{{8, 100}, DType::kFloat32, true, DType::kFloat32, 0};
  const PortPrice price = portPrice(tensors, split, {1, 2}, whole, {1, 2}, cluster);
  const Submesh first = makeSubmesh({2}, {0, 1}, cluster);
  const Submesh second = makeSubmesh({2}, {2, 3}, cluster);
  const TensorAtoms atoms = wholeDims({8, 100});
  const double there =
      transferCostUs(atoms, DType::kFloat32, split.spec, first, whole.spec, second, cluster);
  const double back =
      transferCostUs(atoms, DType::kFloat32, whole.spec, second, split.spec, first, cluster);
  EXPECT_DOUBLE_EQ(price.time_us, there + back);
  EXPECT_DOUBLE_EQ(price.link_us, std::max(there, back));
  // As many other bytes again double it; shapes that a port does not fit are impossible.
  BoundaryTensors more = tensors;
  more.other_bytes = std::int64_t{2} * 8 * 100 * 4;
  EXPECT_DOUBLE_EQ(portPrice(more, split, {1, 2}, whole, {1, 2}, cluster).time_us,
                   2 * price.time_us);
  BoundaryTensors odd = tensors;
  odd.shape = {7, 100};
  EXPECT_EQ(portPrice(odd, split, {1, 2}, whole, {1, 2}, cluster).time_us, kInfinity);
  EXPECT_EQ(portPrice(tensors, split, {2, 2}, whole, {1, 2}, cluster).time_us, kInfinity);
}

// A skip connection of a tenth of the main value's bytes, and its gradient: a tenth more of the
// price, and nine tenths of a message's latency each way.
TEST(StagePorts, MessagesOfOtherValuesTakeTheirLatency) {
  const Cluster cluster = twoHostsOfTwo();
  const StagePorts::Port split{{2}, {Placement::shard(0)}, 2};
  BoundaryTensors tensors{{8, 100}, DType::kFloat32, true, DType::kFloat32, 0};
  const PortPrice main = portPrice(tensors, split, {1, 2}, split, {1, 2}, cluster);
  tensors.other_bytes = std::int64_t{2} * 8 * 10 * 4;
  const double latency_us = cluster.inter_host.latency_us;
  tensors.other_messages_there = tensors.other_messages_back = 1;
  const PortPrice both = portPrice(tensors, split, {1, 2}, split, {1, 2}, cluster);
  EXPECT_NEAR(both.time_us, 1.1 * main.time_us + 2 * 0.9 * latency_us, 1e-9);
  EXPECT_NEAR(both.link_us, 1.1 * main.link_us + 0.9 * latency_us, 1e-9);
  tensors.other_messages_back = 3;
  const PortPrice more = portPrice(tensors, split, {1, 2}, split, {1, 2}, cluster);
  EXPECT_NEAR(more.time_us, both.time_us + 2 * latency_us, 1e-9);
  EXPECT_NEAR(more.link_us, both.link_us + 2 * latency_us, 1e-9);
  // Without a main value: three messages there, none back.
  const BoundaryTensors scalars{{}, DType::kFloat32, false, DType::kFloat32, 12, 3, 0};
  const StagePorts::Port none;
  EXPECT_DOUBLE_EQ(portPrice(scalars, none, {1, 2}, none, {1, 2}, cluster).time_us,
                   12 / cluster.inter_host.bandwidth_bytes_per_us + 3 * latency_us);
}

// Two stages of two devices fill a host of four: of their boundaries every second is within a host.
TEST(StagePorts, StagesOfOneSizeShareHosts) {
  Cluster cluster = twoHostsOfTwo();
  cluster.devices_per_host = 4;
  const StagePorts::Port split{{2}, {Placement::shard(0)}, 2};
  const BoundaryTensors tensors{{8, 100}, DType::kFloat32, false, DType::kFloat32, 0};
  const Submesh first = makeSubmesh({2}, {0, 1}, cluster);
  const TensorAtoms atoms = wholeDims({8, 100});
  const auto to = [&](std::vector<int> ranks) {
    return transferCostUs(atoms, DType::kFloat32, split.spec, first, split.spec,
                          makeSubmesh({2}, std::move(ranks), cluster), cluster);
  };
  const PortPrice price = portPrice(tensors, split, {1, 2}, split, {1, 2}, cluster);
  EXPECT_LT(to({2, 3}), to({4, 5}));
  EXPECT_DOUBLE_EQ(price.time_us, (to({2, 3}) + to({4, 5})) / 2);
  EXPECT_DOUBLE_EQ(price.link_us, to({4, 5}));
  // Four of one device fill it, and the last of them is on another host than the next one.
  const StagePorts::Port none;
  BoundaryTensors others;
  others.other_bytes = 1000;
  const auto through = [](const Link& link) {
    return 1000 / link.bandwidth_bytes_per_us + link.latency_us;
  };
  EXPECT_DOUBLE_EQ(portPrice(others, none, {1, 1}, none, {1, 1}, cluster).time_us,
                   0.75 * through(cluster.intra_host) + 0.25 * through(cluster.inter_host));
  // Of unequal size, the smaller ones stand behind all larger ones.
  EXPECT_DOUBLE_EQ(portPrice(others, none, {1, 1}, none, {1, 2}, cluster).time_us,
                   through(cluster.inter_host));
}

TEST(StagePorts, WhatHasNoLayoutIsPricedByItsBytesAndMessages) {
  const Cluster cluster = twoHostsOfTwo();
  const StagePorts::Port none;
  const Link& link = cluster.inter_host;
  BoundaryTensors tensors;
  EXPECT_EQ(portPrice(tensors, none, {1, 2}, none, {1, 2}, cluster).time_us, 0);
  tensors.other_bytes = 1000;
  const double one = 1000 / link.bandwidth_bytes_per_us + link.latency_us;
  const PortPrice there = portPrice(tensors, none, {1, 2}, none, {1, 2}, cluster);
  EXPECT_DOUBLE_EQ(there.time_us, one);
  EXPECT_DOUBLE_EQ(there.link_us, one);
  tensors.has_gradient = true;
  const PortPrice both = portPrice(tensors, none, {1, 2}, none, {1, 2}, cluster);
  EXPECT_DOUBLE_EQ(both.time_us, one + link.latency_us);
  EXPECT_DOUBLE_EQ(both.link_us, both.time_us / 2);
}

TEST(LayerSequences, RangesOfEqualClassesAreOne) {
  const LayerSequences sequences({0, 1, 1, 1, 2});
  EXPECT_EQ(sequences.of(1, 3), sequences.of(2, 4));
  EXPECT_NE(sequences.of(1, 3), sequences.of(0, 2));
  const auto [front, last] = sequences.step(sequences.of(1, 4));
  EXPECT_EQ(front, sequences.of(1, 3));
  EXPECT_EQ(last, 1);
  // 0, 01, 011, 0111, 01112, 1, 11, 111, 1112, 112, 12, 2.
  EXPECT_EQ(sequences.numSequences(), 12);
  EXPECT_TRUE(sequences.isFirst(sequences.of(0, 3)));
  EXPECT_FALSE(sequences.isFirst(sequences.of(1, 2)));
  // Layers 0 and 1 are alike: what begins with either may be in the middle.
  EXPECT_FALSE(LayerSequences({0, 0, 1}).isFirst(0));
}

// Layers of two classes between the same two specs on every mesh, the ends having none.
struct RandomLayers {
  std::vector<int> classes;
  std::vector<BoundaryDims> dims;
  std::vector<BoundaryTensors> tensors;
  std::vector<SubmeshShape> submeshes = {{1, 1}, {1, 2}, {2, 2}};
  std::vector<StageMesh> meshes;
  std::vector<StepTransfer> step_transfers;
};

constexpr int kMicrobatches = 6;

LayerTable randomTable(std::mt19937_64& random, std::vector<ShardingSpec> entries,
                       std::vector<ShardingSpec> exits, std::size_t num_prices, int devices) {
  LayerTable table;
  table.entry_specs = std::move(entries);
  table.exit_specs = std::move(exits);
  const auto draw = [&](int most) { return static_cast<std::int64_t>(random() % unsigned(most)); };
  for (std::size_t price = 0; price < num_prices; ++price) {
    std::vector<LayerCost>& costs = table.costs.emplace_back();
    for (std::size_t pair = 0; pair < table.entry_specs.size() * table.exit_specs.size(); ++pair) {
      LayerCost cost;
      cost.possible = draw(10) != 0;
      cost.forward_us = static_cast<double>(1 + draw(20)) / devices;
      cost.backward_us = static_cast<double>(2 + draw(40)) / devices;
      cost.update_us = static_cast<double>(draw(5));
      cost.cost_units = static_cast<std::int64_t>(
          1000 * (kMicrobatches * (cost.forward_us + cost.backward_us) + cost.update_us));
      cost.fixed_bytes = 10 + draw(30) / devices;
      cost.saved_bytes = 5 + draw(9);
      cost.saved_entry_bytes = draw(3);
      cost.saved_exit_bytes = draw(3);
      cost.transient_bytes.fill(draw(12));
      cost.update_bytes = draw(12);
      costs.push_back(cost);
    }
  }
  return table;
}

RandomLayers randomLayers(std::mt19937_64& random, std::size_t num_prices) {
  RandomLayers layers;
  const std::size_t length = 2 + random() % 3;
  for (std::size_t layer = 0; layer < length; ++layer) {
    layers.classes.push_back(layer == 0 ? 0 : layer + 1 == length ? 2 : 1);
    layers.tensors.push_back({{8, 4},
                              DType::kFloat32,
                              random() % 2 == 0,
                              DType::kFloat32,
                              static_cast<std::int64_t>(random() % 2 * 64),
                              static_cast<int>(random() % 3),
                              static_cast<int>(random() % 3)});
  }
  const int last = static_cast<int>(length) - 1;
  layers.step_transfers = {{0, {last}, static_cast<double>(random() % 100)}, {last, {0, 1}, 9}};
  layers.dims = {{0, 2}, {2, 2}, {2, 0}};
  const std::vector<std::pair<int, std::vector<int>>> shapes = {
      {0, {1}}, {1, {2}}, {2, {4}}, {2, {2, 2}}};
  for (const auto& [submesh, shape] : shapes) {
    const int axes = static_cast<int>(shape.size());
    ShardingSpec split = replicatedSpec(axes);
    split[0] = Placement::shard(0);
    std::vector<ShardingSpec> specs = {replicatedSpec(axes)};
    if (shape[0] > 1) specs.push_back(split);
    const std::vector<ShardingSpec> none = {{}};
    const int devices = layers.submeshes[static_cast<std::size_t>(submesh)].numDevices();
    layers.meshes.push_back({submesh,
                             shape,
                             false,
                             {randomTable(random, none, specs, num_prices, devices),
                              randomTable(random, specs, specs, num_prices, devices),
                              randomTable(random, specs, none, num_prices, devices)}});
  }
  return layers;
}

// Tries every cut, mesh and spec; memory is not looked at.
class Exhaustion {
 public:
  Exhaustion(const RandomLayers& layers, const Cluster& cluster)
      : layers_(layers), cluster_(cluster) {}

  double run() {
    extend(0, 0, 0, 0, nullptr, {});
    return best_;
  }

 private:
  using Port = StagePorts::Port;

  Port portOf(const StageMesh& mesh, const ShardingSpec& spec) const {
    return {mesh.mesh_shape, spec, 2};
  }

  // Every way through the layers of one stage: (time, exit spec).
  void ways(const StageMesh& mesh, int layer, int end, std::size_t entry, double time,
            std::vector<std::pair<double, std::size_t>>& found) const {
    const auto index = static_cast<std::size_t>(layer);
    const LayerTable& table = mesh.tables[static_cast<std::size_t>(layers_.classes[index])];
    for (std::size_t exit = 0; exit < table.exit_specs.size(); ++exit) {
      const LayerCost& cost = table.at(0, entry, exit);
      if (!cost.possible) continue;
      const double all = time + cost.forward_us + cost.backward_us + cost.update_us / kMicrobatches;
      if (layer + 1 == end) {
        found.emplace_back(all, exit);
      } else {
        ways(mesh, layer + 1, end, exit, all, found);
      }
    }
  }

  void extend(int layer, int devices, double sum, double longest, const StageMesh* before,
              const ShardingSpec& exit_spec) {
    const int count = static_cast<int>(layers_.classes.size());
    if (layer == count) {
      if (devices == cluster_.numDevices()) {
        best_ = std::min(best_, sum + (kMicrobatches - 1) * longest);
      }
      return;
    }
    for (const StageMesh& mesh : layers_.meshes) {
      const SubmeshShape& shape = layers_.submeshes[static_cast<std::size_t>(mesh.submesh)];
      if (devices + shape.numDevices() > cluster_.numDevices()) continue;
      const LayerTable& first =
          mesh.tables[static_cast<std::size_t>(layers_.classes[static_cast<std::size_t>(layer)])];
      for (std::size_t entry = 0; entry < first.entry_specs.size(); ++entry) {
        PortPrice price;
        if (before != nullptr) {
          price = portPrice(layers_.tensors[static_cast<std::size_t>(layer)],
                            portOf(*before, exit_spec),
                            layers_.submeshes[static_cast<std::size_t>(before->submesh)],
                            portOf(mesh, first.entry_specs[entry]), shape, cluster_);
        }
        for (int end = layer + 1; end <= count; ++end) {
          std::vector<std::pair<double, std::size_t>> found;
          ways(mesh, layer, end, entry, 0, found);
          const LayerTable& last = mesh.tables[static_cast<std::size_t>(
              layers_.classes[static_cast<std::size_t>(end - 1)])];
          for (auto& [time, exit] : found) {
            for (const StepTransfer& transfer : layers_.step_transfers) {
              const auto inside = [&](int at) { return layer <= at && at < end; };
              bool all = true;
              for (const int target : transfer.targets) all = all && inside(target);
              if (inside(transfer.source) && !all) time += transfer.time_us / kMicrobatches;
            }
            extend(end, devices + shape.numDevices(), sum + price.time_us + time,
                   std::max({longest, price.link_us, time}), &mesh, last.exit_specs[exit]);
          }
        }
      }
    }
  }

  const RandomLayers& layers_;
  const Cluster& cluster_;
  double best_ = kInfinity;
};

TEST(StageTables, TheSearchOverThemIsExhaustive) {
  std::mt19937_64 random(11);
  const Cluster cluster = twoHostsOfTwo();
  int possible = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const RandomLayers layers = randomLayers(random, 1);
    const LayerSequences sequences(layers.classes);
    const StageTables tables(
        sequences, layers.dims, layers.meshes, layers.submeshes, layers.tensors, cluster,
        {.num_microbatches = kMicrobatches, .step_transfers = layers.step_transfers});
    const StageAnswer answer = searchStages(tables.problem());
    const double best = Exhaustion(layers, cluster).run();
    if (answer.stages.empty()) {
      EXPECT_EQ(best, kInfinity) << trial;
      continue;
    }
    ++possible;
    EXPECT_NEAR(answer.evaluation.time, best, 1e-9 * best) << trial;
    for (const PlannedStage& stage : answer.stages) {
      const StageWay& way = tables.way(stage.begin, stage.end, stage.kind);
      const StageCost& cost = way.cost;
      const auto kind = static_cast<std::size_t>(stage.kind);
      EXPECT_GE(tables.problem().times[kind].at(stage.begin, stage.end),
                cost.forward_us + cost.backward_us + cost.update_us / kMicrobatches - 1e-9);
    }
  }
  EXPECT_GT(possible, 150);
}

// Three layers in a row of 5 saved and 7 late bytes that need 2 more for a moment inside a stage, 3
// as its first layer and 1 as the last one or alone. What enters the first one takes 3 bytes that
// it does not save, the gradients that enter the last one 4, of which 1 counts as late.
TEST(StageBytes, AreThoseOfTheScheduleAndThePlace) {
  LayerTable table{{{}}, {{}}, {{LayerCost{}}}, {true}};
  LayerCost& layer = table.costs[0][0];
  layer.possible = true;
  layer.fixed_bytes = 100;
  layer.saved_bytes = 5;
  layer.late_bytes = 7;
  layer.entry_bytes = 3;
  layer.gradient_bytes = 4;
  layer.late_gradient_bytes = 1;
  layer.transient_bytes = {2, 3, 1, 1};
  const LayerSequences sequences({0, 0, 0});
  const auto costOf = [&](int end) {
    return sequenceCosts(sequences, {table}, 0)[static_cast<std::size_t>(sequences.of(0, end))][0];
  };
  const StageBytes split = stageBytes(costOf(3), true, false);
  EXPECT_EQ(split.held, 300 + 3);
  EXPECT_EQ(split.per_microbatch, 3 * (5 + 7) + 3 + 4 - 1);
  const StageBytes first = stageBytes(costOf(3), true, true);
  EXPECT_EQ(first.held, 300 + 3 + 7);  // one layer's late part at a time
  EXPECT_EQ(first.per_microbatch, 3 * 5 + 3 + 4);
  const StageBytes alone = stageBytes(costOf(1), true, true);
  EXPECT_EQ(alone.held, 100 + 1 + 7 - 1);
  EXPECT_EQ(alone.per_microbatch, 5 + 3 + 4);
}

TEST(StageBytes, WithoutALatePartGradientsAreThereOnce) {
  StageCost cost;
  cost.fixed_bytes = 100;
  cost.saved_bytes = 5;
  cost.entry_bytes = 3;
  cost.gradient_bytes = 4;
  cost.transient = {2, 2};
  const StageBytes bytes = stageBytes(cost, false, false);
  EXPECT_EQ(bytes.held, 106);
  EXPECT_EQ(bytes.per_microbatch, 8);
}

// A value of 10 bytes from layer 0 that layers 1 and 3 read, 3 without keeping it, and its gradient
// of 20 bytes that goes from 3 back to 0 and is kept there for later.
TEST(PassingBytes, AreThoseThatNoLayerOfTheStageCounts) {
  const PassingBytes bytes = passingBytes(
      4, {{0, {1, 3}, {true, false}, Phase::kForward, 10}, {3, {0}, {true}, Phase::kBackward, 20}});
  EXPECT_EQ(bytes.activations.at(1, 4), 0);
  EXPECT_EQ(bytes.activations.at(2, 4), 10);
  EXPECT_EQ(bytes.activations.at(3, 4), 0);  // its first layer's own
  EXPECT_EQ(bytes.activations.at(1, 3), 0);
  EXPECT_EQ(bytes.activations.at(0, 4), 0);
  EXPECT_EQ(bytes.gradients.at(0, 2), 0);
  EXPECT_EQ(bytes.first_gradients.at(0, 2), 20);
  EXPECT_EQ(bytes.first_gradients.at(0, 1), 0);  // its last layer's own
  EXPECT_EQ(bytes.first_gradients.at(1, 2), 0);
  EXPECT_EQ(bytes.inner.at(0, 4), 0);
  const PassingBytes passing = passingBytes(4, {{3, {0}, {false}, Phase::kBackward, 20}});
  EXPECT_EQ(passing.gradients.at(0, 3), 20);
  EXPECT_EQ(passing.inner.at(0, 4), 20);
}

// A tied weight's gradient of 30 bytes from layer 3, and a norm of 10 from layer 1, for layers 0
// and 1.
TEST(PassingBytes, WhatComesOncePerStepFromOthersIsAShareOfWhatTheLayersReceive) {
  const PassingBytes bytes = passingBytes(
      4, {{3, {0}, {false}, Phase::kUpdate, 30}, {1, {0}, {false}, Phase::kUpdate, 10}});
  EXPECT_DOUBLE_EQ(bytes.step_share.at(0, 1), 1);
  EXPECT_DOUBLE_EQ(bytes.step_share.at(0, 2), 0.75);
  EXPECT_DOUBLE_EQ(bytes.step_share.at(0, 4), 0);
  EXPECT_DOUBLE_EQ(bytes.step_share.at(2, 4), 0);
  EXPECT_EQ(bytes.gradients.at(0, 2), 0);
}

// A value of 10 bytes that layers 1, 2 and 3 read and keep is there once.
TEST(PassingBytes, WhatSeveralLayersKeepIsRepeated) {
  const PassingBytes bytes =
      passingBytes(4, {{0, {1, 2, 3}, {true, true, true}, Phase::kForward, 10}});
  EXPECT_EQ(bytes.repeated.at(0, 4), 20);
  EXPECT_EQ(bytes.repeated.at(1, 4), 20);
  EXPECT_EQ(bytes.repeated.at(2, 4), 10);
  EXPECT_EQ(bytes.repeated.at(3, 4), 0);
  EXPECT_EQ(bytes.activations.at(2, 4), 0);
}

// Of several ways the ones stay that no other is better than in time and in both kinds of bytes.
TEST(StageTables, WaysThatSaveMemoryStayAndWorseOnesGo) {
  std::mt19937_64 random(12);
  const Cluster cluster = twoHostsOfTwo();
  const RandomLayers layers = randomLayers(random, 3);
  const LayerSequences sequences(layers.classes);
  const StageTables tables(sequences, layers.dims, layers.meshes, layers.submeshes, layers.tensors,
                           cluster,
                           {.num_microbatches = kMicrobatches,
                            .memory_limit_bytes = 100000,
                            .num_prices = 3,
                            .most_ways = 100});
  const StageProblem& problem = tables.problem();
  int compared = 0;
  for (std::size_t a = 0; a < problem.kinds.size(); ++a) {
    for (std::size_t b = 0; b < problem.kinds.size(); ++b) {
      const StageKind& one = problem.kinds[a];
      const StageKind& two = problem.kinds[b];
      if (a == b || one.submesh != two.submesh || one.entry_spec != two.entry_spec ||
          one.exit_spec != two.exit_spec) {
        continue;
      }
      for (int begin = 0; begin < problem.num_layers; ++begin) {
        for (int end = begin + 1; end <= problem.num_layers; ++end) {
          if (problem.times[a].at(begin, end) == kInfinity ||
              problem.times[b].at(begin, end) == kInfinity) {
            continue;
          }
          ++compared;
          EXPECT_FALSE(problem.times[a].at(begin, end) <= problem.times[b].at(begin, end) &&
                       problem.memory[a].fixed_bytes.at(begin, end) <=
                           problem.memory[b].fixed_bytes.at(begin, end) &&
                       problem.memory[a].per_microbatch_bytes.at(begin, end) <=
                           problem.memory[b].per_microbatch_bytes.at(begin, end));
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace shardwright
