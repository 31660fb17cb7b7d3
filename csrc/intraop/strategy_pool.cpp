#include "intraop/strategy_pool.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cost/compute.h"

namespace shardwright {
namespace {

// Raw bytes of plain numbers, appended to a key.
template <typename T>
void put(std::string& key, const T& value) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  key.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
void putAll(std::string& key, const std::vector<T>& values) {
  put(key, values.size());
  for (const T& value : values) {
    put(key, value);
  }
}

void putDims(std::string& key, const std::vector<std::vector<int>>& dims) {
  put(key, dims.size());
  for (const std::vector<int>& dim : dims) {
    putAll(key, dim);
  }
}

void putFlags(std::string& key, const std::vector<bool>& flags) {
  put(key, flags.size());
  for (const bool flag : flags) {
    key.push_back(flag ? '1' : '0');
  }
}

// A product multiplies along a reduced factor: its arithmetic exceeds what reading its tensors once
// explains.
bool isProduct(const Graph& graph, const Node& node, const ShardingRule& rule) {
  double elements = 0;
  for (const ValueRef& operand : node.operands()) {
    elements = std::max(elements, static_cast<double>(graph.meta(operand).numElements()));
  }
  for (const TensorMeta& output : node.outputs) {
    elements = std::max(elements, static_cast<double>(output.numElements()));
  }
  const bool by_name = node.op.find("mm") != std::string::npos ||
                       node.op.find("convolution") != std::string::npos ||
                       node.op.find("attention") != std::string::npos;
  return by_name && rule.flops >= 2 * elements;
}

}  // namespace

StrategySet StrategySet::restrictedTo(const std::vector<std::size_t>& kept,
                                      SpecTables& tables) const {
  StrategySet result;
  for (const std::size_t index : kept) {
    result.strategies.push_back(strategies[index]);
    result.cost_us.push_back(cost_us[index]);
  }
  const auto restrictList = [&](SpecListId id) {
    std::vector<SpecId> list;
    for (const std::size_t index : kept) {
      list.push_back(tables.list(id)[index]);
    }
    return tables.internList(std::move(list));
  };
  for (const SpecListId id : operands) {
    result.operands.push_back(restrictList(id));
  }
  for (const SpecListId id : outputs) {
    result.outputs.push_back(restrictList(id));
  }
  for (const std::vector<std::int64_t>& bytes : output_bytes) {
    std::vector<std::int64_t>& kept_bytes = result.output_bytes.emplace_back();
    for (const std::size_t index : kept) {
      kept_bytes.push_back(bytes[index]);
    }
  }
  return result;
}

StrategyPool::StrategyPool(const ShardedGraph& graph, const DeviceMesh& mesh,
                           const Cluster& cluster, bool shard_all_products, SpecTables& tables)
    : graph_(&graph),
      mesh_(&mesh),
      cluster_(&cluster),
      shard_all_products_(shard_all_products),
      tables_(&tables) {}

std::shared_ptr<const StrategySet> StrategyPool::strategies(NodeId node) {
  std::string key = keyOf(node);
  const auto [entry, added] = sets_.try_emplace(std::move(key));
  if (added) {
    entry->second = std::make_shared<const StrategySet>(build(node));
  }
  return entry->second;
}

std::string StrategyPool::keyOf(NodeId id) const {
  const Node& node = graph_->graph().node(id);
  const ShardingRule& rule = graph_->rule(id);
  std::string key = node.op;
  key.push_back('\0');
  put(key, node.input ? static_cast<int>(node.input->kind) : -1);
  put(key, rule.factors.size());
  for (const Factor& factor : rule.factors) {
    put(key, factor.size);
    put(key, factor.reduce);
    putFlags(key, {factor.blocked, factor.needs_offset});
  }
  const auto putMaps = [&](const std::vector<TensorMap>& maps) {
    put(key, maps.size());
    for (const TensorMap& map : maps) {
      putDims(key, map.dims);
      putFlags(key, {map.missing_is_partial});
    }
  };
  putMaps(rule.operands);
  putMaps(rule.outputs);
  put(key, rule.partials.size());
  for (const PartialRule& partial : rule.partials) {
    putFlags(key, partial.operands);
    putFlags(key, partial.outputs);
    put(key, partial.reduce);
  }
  putAll(key, rule.aliases);
  put(key, rule.flops);
  put(key, rule.bytes_moved);
  key += rule.offset_op;
  key.push_back('\0');
  key += rule.sharded_op;
  key.push_back('\0');
  const auto putValue = [&](ValueRef value) {
    const TensorAtoms& atoms = graph_->atoms(value);
    putAll(key, atoms.sizes);
    putDims(key, atoms.dims);
    putAll(key, graph_->graph().meta(value).shape);
    put(key, graph_->graph().meta(value).dtype);
  };
  const std::vector<ValueRef> operands = node.operands();
  for (const ValueRef& operand : operands) {
    putValue(operand);
    // An operand used twice is read once.
    put(key, std::find(operands.begin(), operands.end(), operand) - operands.begin());
  }
  for (std::size_t output = 0; output < node.outputs.size(); ++output) {
    putValue({id, static_cast<int>(output)});
  }
  return key;
}

StrategySet StrategyPool::build(NodeId id) {
  const Node& node = graph_->graph().node(id);
  StrategySet set;
  set.strategies = enumerateStrategies(*graph_, id, mesh_->shape());
  if (shard_all_products_ && isProduct(graph_->graph(), node, graph_->rule(id))) {
    std::int64_t most = 0;
    for (const Strategy& strategy : set.strategies) {
      most = std::max(most, strategy.compute_shards);
    }
    std::erase_if(set.strategies,
                  [most](const Strategy& strategy) { return strategy.compute_shards < most; });
  }
  for (const Strategy& strategy : set.strategies) {
    set.cost_us.push_back(computeCostUs(*graph_, id, strategy, mesh_->shape(), *cluster_));
  }
  const std::size_t num_operands = node.operands().size();
  for (std::size_t operand = 0; operand < num_operands; ++operand) {
    std::vector<SpecId> list;
    for (const Strategy& strategy : set.strategies) {
      list.push_back(tables_->intern(strategy.operands[operand]));
    }
    set.operands.push_back(tables_->internList(std::move(list)));
  }
  for (std::size_t output = 0; output < node.outputs.size(); ++output) {
    const ValueRef value{id, static_cast<int>(output)};
    std::vector<SpecId> list;
    std::vector<std::int64_t>& bytes = set.output_bytes.emplace_back();
    for (const Strategy& strategy : set.strategies) {
      list.push_back(tables_->intern(strategy.outputs[output]));
      bytes.push_back(localBytes(graph_->atoms(value), node.outputs[output].dtype,
                                 strategy.outputs[output], mesh_->shape()));
    }
    set.outputs.push_back(tables_->internList(std::move(list)));
  }
  return set;
}

}  // namespace shardwright
