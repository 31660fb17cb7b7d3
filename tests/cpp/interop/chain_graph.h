// A small step of equal layers, for the tests of layers.
#pragma once

#include <string>
#include <vector>

#include "interop/layer_graphs.h"
#include "plan/small_graph.h"

namespace shardwright {

// A chain x -> a -> b -> c of relu(mm), one layer each, whose gradients come back: layers 1 and 2
// do the same to tensors of the same shapes. Update: w -= norm * sum of gradients, with one norm.
struct Chain {
  SmallGraph graph;
  std::vector<int> layers;

  ValueRef add(ValueRef value, int layer) {
    layers.push_back(layer);
    return value;
  }

  explicit Chain(int num_layers, bool with_skip = false) {
    std::vector<ValueRef> weights;
    for (int k = 0; k < num_layers; ++k) {
      weights.push_back(
          add(graph.input("w" + std::to_string(k), {4, 4}, InputKind::kParameter), k));
    }
    std::vector<ValueRef> acts = {add(graph.input("x", {8, 4}), kEveryLayer)};
    for (int k = 0; k < num_layers; ++k) {
      const std::string name = std::to_string(k);
      const ValueRef h =
          add(graph.mm("h" + name, acts.back(), weights[static_cast<std::size_t>(k)]), k);
      ValueRef a = add(graph.op("a" + name, "aten.relu.default", {h}, {8, 4}), k);
      if (with_skip && k == num_layers - 1) {
        a = add(graph.op("skip", "aten.add.Tensor", {a, acts[1]}, {8, 4}), k);
      }
      acts.push_back(a);
    }
    ValueRef gradient = acts.back();
    std::vector<ValueRef> sums;
    for (int k = num_layers - 1; k >= 0; --k) {
      const std::string name = std::to_string(k);
      const ValueRef d =
          add(graph.op("d" + name, "aten.relu.default", {gradient}, {8, 4}, Phase::kBackward), k);
      const ValueRef t =
          add(graph.op("t" + name, "aten.relu.default", {weights[static_cast<std::size_t>(k)]},
                       {4, 4}, Phase::kBackward),
              k);
      const ValueRef u =
          add(graph.op("u" + name, "aten.relu.default", {weights[static_cast<std::size_t>(k)]},
                       {4, 4}, Phase::kBackward),
              k);
      gradient = add(graph.mm("g" + name, d, t, Phase::kBackward), k);
      sums.push_back(add(
          graph.op("s" + name, "shardwright.accumulate.default", {u}, {4, 4}, Phase::kUpdate), k));
    }
    std::vector<ValueRef> news;
    ValueRef norm = sums.back();
    for (std::size_t k = 0; k + 1 < sums.size(); ++k) {
      norm = add(graph.op("n" + std::to_string(k), "aten.add.Tensor", {norm, sums[k]}, {4, 4},
                          Phase::kUpdate),
                 0);
    }
    for (int k = 0; k < num_layers; ++k) {
      const ValueRef fresh =
          add(graph.op("new" + std::to_string(k), "aten.add.Tensor",
                       {weights[static_cast<std::size_t>(k)], norm}, {4, 4}, Phase::kUpdate),
              k);
      graph.update(fresh, weights[static_cast<std::size_t>(k)]);
    }
    graph.result(acts.back());
  }

  LayerGraphs cut() const { return makeLayerGraphs(graph.build(), layers); }
};

}  // namespace shardwright
