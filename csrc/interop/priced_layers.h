// What searches for stages have priced of a step's layers, for later searches of the same step.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "interop/layer_costs.h"
#include "mesh/submesh_shape.h"

namespace shardwright {

// Tables of all classes of a step's layers by submesh, logical mesh and prices of memory. Contract:
// step, its layers, registry, cluster and LayerCostOptions are the same whenever it is used.
class PricedLayers {
 public:
  // The tables known, or those that `make` gives: none where it was stopped, which are not kept.
  // May be called by several threads at once.
  std::vector<LayerTable> tables(const SubmeshShape& submesh, const std::vector<int>& mesh_shape,
                                 const std::vector<MemoryPrice>& prices,
                                 const std::function<std::vector<LayerTable>()>& make);

 private:
  using Key = std::tuple<SubmeshShape, std::vector<int>, std::vector<MemoryPrice>>;

  std::mutex mutex_;
  std::map<Key, std::vector<LayerTable>> tables_;
};

}  // namespace shardwright
