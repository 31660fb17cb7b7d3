// The bytes that the ways to run a layer hold, by how long they hold them. Private to layer_costs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "interop/layer_costs.h"
#include "interop/layer_graphs.h"
#include "intraop/model.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

// How long a buffer is there: all the step, from forward to backward, from backward's first part to
// its late one, or less.
enum class MemorySpan : std::uint8_t { kFixed, kSaved, kLate, kPassing };

// By received value of a layer: whether its saved bytes (or late ones) have it.
std::vector<bool> keptReceived(const ShardedGraph& graph, const LayerClass& layer);

class LayerMemory {
 public:
  // Keeps the model's problem, which must outlive this.
  LayerMemory(const ShardedGraph& graph, const LayerClass& layer, const Model& model);

  // By problem node and strategy. Late bytes count as saved ones.
  const std::vector<std::vector<std::int64_t>>& fixedBytes() const { return fixed_; }
  const std::vector<std::vector<std::int64_t>>& savedBytes() const { return saved_; }
  // Fills in the bytes of a choice, which has one strategy per problem node.
  void measure(std::span<const std::int32_t> choice, LayerCost& cost) const;

 private:
  struct Piece {
    std::size_t node = 0;
    MemorySpan span = MemorySpan::kPassing;
    LiveInterval interval;
    const std::vector<std::int64_t>* bytes = nullptr;
    bool is_entry = false;
    bool is_exit = false;
    std::optional<Phase> received;  // from another layer, in which part
  };

  static void addReceived(const Piece& piece, std::int64_t bytes, LayerCost& cost);

  std::int64_t num_times_ = 0;
  std::int64_t first_update_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::vector<std::int64_t>> fixed_;
  std::vector<std::vector<std::int64_t>> saved_;
};

}  // namespace shardwright
