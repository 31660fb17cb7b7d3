#include "interop/stage_costs.h"

#include <algorithm>

namespace shardwright {
namespace {

StageCost ofLayer(const LayerCost& layer) {
  return {.possible = layer.possible,
          .score = static_cast<double>(layer.cost_units),
          .forward_us = layer.forward_us,
          .backward_us = layer.backward_us,
          .update_us = layer.update_us,
          .fixed_bytes = layer.fixed_bytes,
          .saved_bytes = layer.saved_bytes,
          .saved_entry_bytes = layer.saved_entry_bytes,
          .saved_exit_bytes = layer.saved_exit_bytes,
          .transient_bytes = layer.transient_bytes,
          .update_bytes = layer.update_bytes};
}

StageCost joined(const StageCost& front, const StageCost& back) {
  const std::int64_t shared = std::min(front.saved_exit_bytes, back.saved_entry_bytes);
  return {.possible = true,
          .score = front.score + back.score,
          .forward_us = front.forward_us + back.forward_us,
          .backward_us = front.backward_us + back.backward_us,
          .update_us = front.update_us + back.update_us,
          .fixed_bytes = front.fixed_bytes + back.fixed_bytes,
          .saved_bytes = front.saved_bytes + back.saved_bytes - shared,
          .saved_entry_bytes = front.saved_entry_bytes,
          .saved_exit_bytes = back.saved_exit_bytes,
          .transient_bytes = std::max(front.transient_bytes, back.transient_bytes),
          .update_bytes = std::max(front.update_bytes, back.update_bytes)};
}

}  // namespace

std::int64_t StageCost::heldBytes() const {
  return fixed_bytes + std::max(transient_bytes, update_bytes);
}

LayerSequences::LayerSequences(const std::vector<int>& class_of_layer)
    : num_layers_(static_cast<int>(class_of_layer.size())) {
  std::map<std::pair<int, int>, int> known;
  for (std::size_t begin = 0; begin < class_of_layer.size(); ++begin) {
    std::vector<int>& row = sequences_.emplace_back();
    int front = -1;
    for (std::size_t last = begin; last < class_of_layer.size(); ++last) {
      const std::pair<int, int> step = {front, class_of_layer[last]};
      const auto [found, is_new] = known.try_emplace(step, numSequences());
      if (is_new) {
        steps_.push_back(step);
        lengths_.push_back(static_cast<int>(last - begin) + 1);
      }
      front = found->second;
      row.push_back(front);
    }
  }
}

int LayerSequences::of(int begin, int end) const {
  return sequences_[static_cast<std::size_t>(begin)][static_cast<std::size_t>(end - begin - 1)];
}

std::vector<std::vector<StageCost>> sequenceCosts(const LayerSequences& sequences,
                                                  const std::vector<LayerTable>& tables,
                                                  std::size_t price) {
  std::vector<std::vector<StageCost>> costs;
  std::vector<std::size_t> num_entries;
  for (int sequence = 0; sequence < sequences.numSequences(); ++sequence) {
    const auto [front_sequence, last] = sequences.step(sequence);
    const LayerTable& table = tables[static_cast<std::size_t>(last)];
    const std::size_t exits = table.exit_specs.size();
    std::vector<StageCost> own;
    for (const LayerCost& layer : table.costs[price]) own.push_back(ofLayer(layer));
    if (front_sequence < 0) {
      costs.push_back(std::move(own));
      num_entries.push_back(table.entry_specs.size());
      continue;
    }
    const std::vector<StageCost>& front = costs[static_cast<std::size_t>(front_sequence)];
    const std::size_t entries = num_entries[static_cast<std::size_t>(front_sequence)];
    const std::size_t middles = table.entry_specs.size();
    std::vector<StageCost> result(entries * exits);
    for (std::size_t entry = 0; entry < entries; ++entry) {
      for (std::size_t exit = 0; exit < exits; ++exit) {
        const StageCost* best_front = nullptr;
        const StageCost* best_back = nullptr;
        for (std::size_t middle = 0; middle < middles; ++middle) {
          const StageCost& before = front[entry * middles + middle];
          const StageCost& after = own[middle * exits + exit];
          if (!before.possible || !after.possible) continue;
          if (best_front == nullptr ||
              before.score + after.score < best_front->score + best_back->score) {
            best_front = &before;
            best_back = &after;
          }
        }
        if (best_front != nullptr) result[entry * exits + exit] = joined(*best_front, *best_back);
      }
    }
    costs.push_back(std::move(result));
    num_entries.push_back(entries);
  }
  return costs;
}

}  // namespace shardwright
