// The bytes that the ways to run a layer hold, by how long they hold them. Private to layer_costs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "interop/layer_costs.h"
#include "interop/layer_graphs.h"
#include "intraop/model.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

class LayerMemory {
 public:
  // Keeps the model's problem, which must outlive this.
  LayerMemory(const ShardedGraph& graph, const LayerClass& layer, const Model& model);

  // By problem node and strategy.
  const std::vector<std::vector<std::int64_t>>& fixedBytes() const { return fixed_; }
  const std::vector<std::vector<std::int64_t>>& savedBytes() const { return saved_; }
  // Fills in the bytes of a choice, which has one strategy per problem node.
  void measure(std::span<const std::int32_t> choice, LayerCost& cost) const;

 private:
  enum class Span : std::uint8_t { kFixed, kSaved, kPassing };
  struct Piece {
    std::size_t node = 0;
    Span span = Span::kPassing;
    LiveInterval interval;
    const std::vector<std::int64_t>* bytes = nullptr;
    bool is_entry = false;
    bool is_exit = false;
  };

  Span spanOf(const LiveInterval& interval, bool is_of_microbatch) const;

  std::int64_t num_times_ = 0;
  std::int64_t first_backward_ = 0;
  std::int64_t first_update_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::vector<std::int64_t>> fixed_;
  std::vector<std::vector<std::int64_t>> saved_;
};

}  // namespace shardwright
