#include "plan/memory_timeline.h"

#include <gtest/gtest.h>

#include <memory>

#include "plan/small_graph.h"

namespace shardwright {
namespace {

Buffer buffer(std::int64_t bytes, BufferKind kind, std::int64_t made, std::int64_t last_read) {
  Buffer result;
  result.bytes = bytes;
  result.kind = kind;
  result.made = made;
  result.last_read = last_read;
  return result;
}

class Timeline : public testing::Test {
 protected:
  Timeline() {
    SmallGraph graph;
    const ValueRef x = graph.input("x", {4, 4});
    const ValueRef y = graph.op("y", "aten.relu.default", {x}, {4, 4});
    graph.result(graph.op("z", "aten.relu.default", {y}, {4, 4}, Phase::kUpdate));
    graph_ = std::make_unique<Graph>(graph.build());
    // Bytes alive at moments 0 to 5: 1 5 2 8 3 3.
    replay_.moments = {NodeId(), NodeId(1), NodeId(1), NodeId(2), NodeId(2), NodeId(2)};
    replay_.buffers = {buffer(1, BufferKind::kParameter, 0, 5),
                       buffer(4, BufferKind::kActivation, 1, 1),
                       buffer(1, BufferKind::kOptimizer, 2, 5),
                       buffer(6, BufferKind::kGradient, 3, 3), buffer(1, BufferKind::kOther, 4, 5)};
  }

  std::unique_ptr<Graph> graph_;
  Replay replay_;
};

TEST_F(Timeline, KeepsTheHighestMomentOfEachStretch) {
  const std::vector<MemorySample> samples = memoryTimeline(*graph_, replay_, {}, 2);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].moment, 1);
  EXPECT_EQ(samples[1].moment, 3);
  EXPECT_EQ(samples[0].memory.activations, 4);
  EXPECT_EQ(samples[1].memory.gradients, 6);
  EXPECT_EQ(samples[1].memory.total(), 8);
}

TEST_F(Timeline, GivesShortPhasesAsManySamplesAsLongOnes) {
  // 60 more moments of the update; forward keeps its three samples.
  replay_.moments.resize(66, NodeId(2));
  const std::vector<MemorySample> samples = memoryTimeline(*graph_, replay_, {}, 6);
  ASSERT_EQ(samples.size(), 6u);
  EXPECT_EQ(samples[2].moment, 2);
  EXPECT_EQ(samples[2].phase, Phase::kForward);
  EXPECT_EQ(samples[3].phase, Phase::kUpdate);
}

TEST_F(Timeline, HoldsThePeakAndThePhaseOfTheOpThatRuns) {
  const std::vector<MemorySample> samples = memoryTimeline(*graph_, replay_, {}, 1);
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].memory.total(), peakMemory(replay_, {}).bytes);
  EXPECT_EQ(samples[0].phase, Phase::kUpdate);
}

TEST_F(Timeline, TakesEveryMomentWhenThereAreFew) {
  const std::vector<MemorySample> samples = memoryTimeline(*graph_, replay_, {}, 100);
  ASSERT_EQ(samples.size(), 6u);
  const std::vector<std::int64_t> expected = {1, 5, 2, 8, 3, 3};
  for (std::size_t moment = 0; moment < samples.size(); ++moment) {
    EXPECT_EQ(samples[moment].memory.total(), expected[moment]);
  }
  EXPECT_EQ(samples[0].phase, Phase::kForward);
}

}  // namespace
}  // namespace shardwright
