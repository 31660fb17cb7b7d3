// Sums over microbatches whose terms belong to several layers, taken apart.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

struct SplitSums {
  std::shared_ptr<const Graph> graph;
  std::vector<int> layer_of_node;
};

// accumulate(add(a, b)), with or without a cast of the sum, becomes accumulate(a) + accumulate(b)
// where a and b belong to different layers and nobody else reads their sum, and so on inside a and
// b: a tied weight's gradients then travel once per step. The new nodes stand where the sum stood;
// those of a term belong to the term's layer.
SplitSums splitSums(const Graph& graph, const std::vector<int>& layer_of_node);

}  // namespace shardwright
