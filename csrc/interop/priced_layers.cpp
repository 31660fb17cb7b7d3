#include "interop/priced_layers.h"

namespace shardwright {

std::vector<LayerTable> PricedLayers::tables(const SubmeshShape& submesh,
                                             const std::vector<int>& mesh_shape,
                                             const std::vector<MemoryPrice>& prices,
                                             const std::function<std::vector<LayerTable>()>& make) {
  const Key key{submesh, mesh_shape, prices};
  {
    const std::scoped_lock lock(mutex_);
    const auto known = tables_.find(key);
    if (known != tables_.end()) return known->second;
  }
  std::vector<LayerTable> made = make();
  if (made.empty()) return made;
  const std::scoped_lock lock(mutex_);
  return tables_.try_emplace(key, std::move(made)).first->second;
}

}  // namespace shardwright
