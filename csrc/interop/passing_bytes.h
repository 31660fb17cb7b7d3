// What values that pass between layers add to the memory of a stage, where the layers' own costs do
// not have them.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "interop/layer_graphs.h"
#include "interop/stage_problem.h"

namespace shardwright {

// A value that one layer makes and others read.
struct PassingValue {
  int source = 0;
  std::vector<int> targets;  // ascending
  // By target: whether its own fixed, saved or late bytes have the value.
  std::vector<bool> kept;
  Phase phase = Phase::kForward;  // as CrossingValue::phase
  std::int64_t bytes = 0;         // of the whole tensor
};

// Of all values between layers. `kept`: as LayerCosts::keptReceived() gives it.
std::vector<PassingValue> passingValues(const LayerGraphs& graphs,
                                        const std::vector<std::vector<bool>>& kept);

// Of whole tensors, by range of layers that form a stage. A stage has once what several of its
// layers receive; what its first layer receives in forward and its last one in backward is in their
// costs.
struct PassingBytes {
  RangeTable<std::int64_t> activations;  // received by the stage, which keeps them for backward
  RangeTable<std::int64_t> repeated;     // activations that several layers' own bytes have
  RangeTable<std::int64_t> gradients;    // received by the stage, which keeps them to its end
  // Of the first stage in a schedule with a late part of backward: there no layer's bytes have any.
  RangeTable<std::int64_t> first_gradients;
  RangeTable<std::int64_t> inner;  // gradients that go on over layers of the stage
  // Of all that its layers receive once per step for the update, the share that comes from others.
  RangeTable<double> step_share;
};

PassingBytes passingBytes(int num_layers, const std::vector<PassingValue>& values);

}  // namespace shardwright
