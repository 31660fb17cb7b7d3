// What layers cost by the specs in which their main values enter and leave: for every layer class,
// logical mesh and price of memory the exact table over (entry spec, exit spec), by elimination.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "interop/layer_graphs.h"
#include "mesh/cluster.h"
#include "sharding/registry.h"

namespace shardwright {

// What a byte per device is taken to cost, in microseconds of the step, to trade time for memory.
struct MemoryPrice {
  double fixed_us_per_byte = 0;  // see LayerCost
  double saved_us_per_byte = 0;

  auto operator<=>(const MemoryPrice&) const = default;
};

struct LayerCostOptions {
  int num_microbatches = 1;
  // Most specs at a boundary; see LayerTable.
  int max_specs = 8;
  // Most table entries that the elimination for one class, mesh and price may visit, about 1e9 per
  // second (the beginning of a row counts as 16).
  double max_work = 2.5e8;
  // As ModelOptions::shard_all_products.
  bool shard_all_products = false;
  // Asked between eliminations, by whatever thread asks for tables; true ends them.
  std::function<bool()> is_stopped = {};
};

// Of a layer in a stage; kAlone: first and last.
enum LayerPlace : std::uint8_t { kInside = 0, kFirst = 1, kLast = 2, kAlone = 3 };

// One way to run a layer on a mesh, per device. Times include conversions inside the layer, none of
// the transfers between layers.
struct LayerCost {
  bool possible = false;
  // num_microbatches * (forward + backward) + update + prices, in units (costUnits) as solved for.
  std::int64_t cost_units = 0;
  double forward_us = 0;   // of one microbatch
  double backward_us = 0;  // of one microbatch
  double update_us = 0;    // of one step
  // Alive throughout forward and backward whatever the number of microbatches in flight:
  // parameters, optimizer state, buffers, batch, sums over microbatches.
  std::int64_t fixed_bytes = 0;
  // Per microbatch in flight: made in forward (or received then) and read in backward.
  std::int64_t saved_bytes = 0;
  // Of saved_bytes: the entering and the leaving main value in their own specs. Where two layers of
  // one stage meet and both save the value, it is there once.
  std::int64_t saved_entry_bytes = 0;
  std::int64_t saved_exit_bytes = 0;
  // Where backward is split: what each microbatch between its parts has besides, made in the first
  // and read in the late one.
  std::int64_t late_bytes = 0;
  // What a stage that begins with the layer keeps besides until backward is done, per microbatch:
  // received in forward and not among the saved bytes.
  std::int64_t entry_bytes = 0;
  // Gradients that the layer receives, and how much of them is among the late bytes. A stage that
  // ends with the layer keeps them all.
  std::int64_t gradient_bytes = 0;
  std::int64_t late_gradient_bytes = 0;
  // Received from other layers once per step and read in the update: a stage keeps what others send
  // it all the step.
  std::int64_t step_bytes = 0;
  // By place of the layer in its stage: most bytes alive at any moment of forward and backward,
  // without fixed, saved and late bytes and, at the ends, what the stage keeps of the received.
  std::array<std::int64_t, 4> transient_bytes = {};
  // Most bytes alive at any moment of the update, without the fixed bytes.
  std::int64_t update_bytes = 0;
};

// Costs of one class on one mesh. Entry spec: of main_in and grad_out; exit spec: of main_out and
// grad_in. Both are boundary specs (see boundary_specs.h) of the shape of the main value of the
// whole graph; without one there is one empty spec that stands for any.
//
// Main values of one shape and dtype have one list of specs on a mesh, whichever class and side
// they stand on, so that tables of neighbours can be joined by index. Of more than max_specs the
// list holds those that come nearest to some class's optimum at the first price (ties to the first
// enumerated), and always the whole one: a restriction of the model.
struct LayerTable {
  std::vector<ShardingSpec> entry_specs;
  std::vector<ShardingSpec> exit_specs;
  std::vector<std::vector<LayerCost>> costs;  // [price][entry * exit_specs.size() + exit]
  // By price: whether each entry is the least. False where elimination would be wider than max_work
  // on all values that could be part of one: then it was made on fewer values per variable, the
  // most promising by message passing, and an entry is what a good choice costs.
  std::vector<bool> is_exact;

  const LayerCost& at(std::size_t price, std::size_t entry, std::size_t exit) const {
    return costs[price][entry * exit_specs.size() + exit];
  }
};

// Tables of all classes of a step. Each entry is the least of the problem that Model states for the
// class's graph with both specs forced and the memory priced (but see LayerTable::is_exact); no
// memory limit.
//
// Other values of other layers are taken to arrive in whatever spec suits the reader at no cost.
class LayerCosts {
 public:
  // Keeps what it needs of `graphs`.
  LayerCosts(const LayerGraphs& graphs, const RuleRegistry& registry,
             const LayerCostOptions& options);
  ~LayerCosts();
  LayerCosts(LayerCosts&&) noexcept;
  LayerCosts& operator=(LayerCosts&&) noexcept;

  // One table per class; none when it was stopped. `cluster` is the submesh that `mesh` lies on.
  // Contract: prices not empty, not negative.
  std::vector<LayerTable> tables(const DeviceMesh& mesh, const Cluster& cluster,
                                 const std::vector<MemoryPrice>& prices) const;

  // By class and value that it receives: whether the layer's own bytes have it from its arrival to
  // backward's end, or late part.
  std::vector<std::vector<bool>> keptReceived() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwright
