// Searches for pipeline stages that end early: the answer is valid, or says that there is none.
#include "plan/pipeline_search.h"

#include <gtest/gtest.h>

#include "interop/chain_graph.h"

namespace shardwright {
namespace {

Cluster twoHosts() {
  Cluster cluster;
  cluster.num_hosts = 2;
  cluster.devices_per_host = 2;
  cluster.peak_flops_per_us = {{DType::kFloat32, 10}};
  cluster.memory_bandwidth_bytes_per_us = 100;
  cluster.kernel_overhead_us = 0.5;
  cluster.intra_host = {50, 1, 0.1};
  cluster.inter_host = {5, 2, 0.2};
  return cluster;
}

PipelineAnswer search(PipelineOptions options) {
  const Chain chain(5);
  const Graph graph = chain.graph.build();
  options.num_microbatches = 4;
  options.num_stages = 2;
  options.memory_limit_bytes = 1 << 20;
  return searchPipeline({&graph, chain.layers}, nullptr, builtinRules(), twoHosts(), options);
}

TEST(PipelineSearch, WithoutTimeThereAreNoStages) {
  PipelineOptions options;
  options.time_limit_s = 0;
  const PipelineAnswer answer = search(options);
  EXPECT_TRUE(answer.stages.empty());
  EXPECT_EQ(answer.status, StageStatus::kTimeLimit);
  EXPECT_FALSE(answer.interrupted);
  EXPECT_EQ(answer.lower_bound_us, 0);
}

TEST(PipelineSearch, AnInterruptWhileLayersArePricedIsHeardBeforeTheNextOne) {
  int asked = 0;
  PipelineOptions options;
  options.is_interrupted = [&] { return ++asked > 0; };
  const PipelineAnswer answer = search(options);
  EXPECT_TRUE(answer.stages.empty());
  EXPECT_TRUE(answer.interrupted);
  EXPECT_EQ(asked, 1);
}

TEST(PipelineSearch, InterruptedAnywhereItsStagesAndBoundHold) {
  const PipelineAnswer best = search({});
  ASSERT_EQ(best.status, StageStatus::kOptimal);
  int num_asked = 0;
  PipelineOptions options;
  options.is_interrupted = [&] {
    ++num_asked;
    return false;
  };
  EXPECT_EQ(search(options).time_us, best.time_us);
  EXPECT_GT(num_asked, 20);
  for (int last = 1; last <= num_asked; last += 1 + num_asked / 20) {
    int asked = 0;
    options.is_interrupted = [&] { return ++asked >= last; };
    const PipelineAnswer answer = search(options);
    EXPECT_LE(answer.lower_bound_us, best.time_us) << last;
    EXPECT_LE(answer.unlimited_us, best.unlimited_us) << last;
    if (!answer.stages.empty()) {
      EXPECT_GE(answer.time_us, best.time_us) << last;
      EXPECT_EQ(answer.stages.back().end, 5) << last;
    }
  }
}

}  // namespace
}  // namespace shardwright
