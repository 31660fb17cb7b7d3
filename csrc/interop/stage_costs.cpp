#include "interop/stage_costs.h"

#include <algorithm>

namespace shardwright {
namespace {

TransientBytes transientOf(const LayerCost& layer, LayerPlace place) {
  const std::int64_t alone = layer.transient_bytes[place];
  const bool is_last = (place & kLast) != 0;
  return {alone, alone + layer.late_bytes - (is_last ? layer.late_gradient_bytes : 0)};
}

TransientBytes most(const TransientBytes& a, const TransientBytes& b) {
  return {std::max(a.alone, b.alone), std::max(a.with_late, b.with_late)};
}

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
          .late_bytes = layer.late_bytes,
          .entry_bytes = layer.entry_bytes,
          .gradient_bytes = layer.gradient_bytes,
          .late_gradient_bytes = layer.late_gradient_bytes,
          .step_bytes = layer.step_bytes,
          .transient = transientOf(layer, kAlone),
          .open_transient = transientOf(layer, kFirst),
          .update_bytes = layer.update_bytes};
}

StageCost joined(const StageCost& front, const LayerCost& layer) {
  const std::int64_t shared = std::min(front.saved_exit_bytes, layer.saved_entry_bytes);
  return {.possible = true,
          .score = front.score + static_cast<double>(layer.cost_units),
          .forward_us = front.forward_us + layer.forward_us,
          .backward_us = front.backward_us + layer.backward_us,
          .update_us = front.update_us + layer.update_us,
          .fixed_bytes = front.fixed_bytes + layer.fixed_bytes,
          .saved_bytes = front.saved_bytes + layer.saved_bytes - shared,
          .saved_entry_bytes = front.saved_entry_bytes,
          .saved_exit_bytes = layer.saved_exit_bytes,
          .late_bytes = front.late_bytes + layer.late_bytes,
          .entry_bytes = front.entry_bytes,
          .gradient_bytes = layer.gradient_bytes,
          .late_gradient_bytes = layer.late_gradient_bytes,
          .step_bytes = front.step_bytes + layer.step_bytes,
          .transient = most(front.open_transient, transientOf(layer, kLast)),
          .open_transient = most(front.open_transient, transientOf(layer, kInside)),
          .update_bytes = std::max(front.update_bytes, layer.update_bytes)};
}

}  // namespace

StageBytes stageBytes(const StageCost& cost, bool splits_backward, bool is_first) {
  const std::int64_t kept = cost.saved_bytes + cost.entry_bytes;
  const auto [alone, with_late] = cost.transient;
  const std::int64_t held = cost.fixed_bytes + std::max(alone, cost.update_bytes);
  if (!splits_backward) return {held + cost.gradient_bytes, kept};
  if (!is_first) {
    return {held, kept + cost.late_bytes + cost.gradient_bytes - cost.late_gradient_bytes};
  }
  return {cost.fixed_bytes + std::max(with_late, cost.update_bytes), kept + cost.gradient_bytes};
}

LayerSequences::LayerSequences(const std::vector<int>& class_of_layer)
    : num_layers_(static_cast<int>(class_of_layer.size())), class_of_layer_(class_of_layer) {
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
        is_first_.push_back(begin == 0);
      } else if (begin > 0) {
        is_first_[static_cast<std::size_t>(found->second)] = false;
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
    const std::vector<LayerCost>& own = table.costs[price];
    if (front_sequence < 0) {
      std::vector<StageCost>& alone = costs.emplace_back();
      for (const LayerCost& layer : own) alone.push_back(ofLayer(layer));
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
        const LayerCost* best_back = nullptr;
        double best = 0;
        for (std::size_t middle = 0; middle < middles; ++middle) {
          const StageCost& before = front[entry * middles + middle];
          const LayerCost& after = own[middle * exits + exit];
          if (!before.possible || !after.possible) continue;
          const double score = before.score + static_cast<double>(after.cost_units);
          if (best_front == nullptr || score < best) {
            best_front = &before;
            best_back = &after;
            best = score;
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
