#include "plan/memory_timeline.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace shardwright {
namespace {

// Number of the stretch of each moment, ascending.
std::vector<std::size_t> stretches(const Graph& graph, const Replay& replay, int max_samples) {
  std::array<std::size_t, 3> moments_of = {};
  for (std::size_t moment = 0; moment < replay.moments.size(); ++moment) {
    ++moments_of[static_cast<std::size_t>(phaseAt(graph, replay, moment))];
  }
  const auto num_phases = static_cast<std::size_t>(
      std::count_if(moments_of.begin(), moments_of.end(), [](std::size_t n) { return n > 0; }));
  const std::size_t num_stretches = static_cast<std::size_t>(std::max(1, max_samples));
  std::array<std::size_t, 3> seen = {};
  std::vector<std::size_t> result;
  for (std::size_t moment = 0; moment < replay.moments.size(); ++moment) {
    const auto phase = static_cast<std::size_t>(phaseAt(graph, replay, moment));
    ++seen[phase];
    // Each phase counts for the same share of the whole, each of its moments for the same of that.
    double done = 0;
    for (std::size_t other = 0; other < seen.size(); ++other) {
      if (moments_of[other] > 0) {
        const std::size_t before = seen[other] - (other == phase ? 1 : 0);
        done += static_cast<double>(before) / static_cast<double>(moments_of[other]);
      }
    }
    const double share = done / static_cast<double>(num_phases);
    result.push_back(std::min(
        num_stretches - 1, static_cast<std::size_t>(share * static_cast<double>(num_stretches))));
  }
  return result;
}

}  // namespace

std::vector<MemorySample> memoryTimeline(const Graph& graph, const Replay& replay,
                                         const WaitingMicrobatches& waiting, int max_samples) {
  const std::vector<std::size_t> stretch_of = stretches(graph, replay, max_samples);
  std::vector<std::vector<const Buffer*>> made(replay.moments.size() + 1);
  std::vector<std::vector<const Buffer*>> freed(replay.moments.size() + 1);
  for (const Buffer& buffer : replay.buffers) {
    made[static_cast<std::size_t>(buffer.made)].push_back(&buffer);
    freed[static_cast<std::size_t>(buffer.last_read) + 1].push_back(&buffer);
  }
  std::vector<MemorySample> samples;
  MemoryAtPeak alive;
  alive.activations = waiting.bytes;
  for (std::size_t moment = 0; moment < replay.moments.size(); ++moment) {
    if (moment == static_cast<std::size_t>(waiting.end)) {
      alive.activations -= waiting.bytes;
    }
    for (const Buffer* buffer : freed[moment]) {
      addBytes(alive, buffer->kind, -buffer->bytes);
    }
    for (const Buffer* buffer : made[moment]) {
      addBytes(alive, buffer->kind, buffer->bytes);
    }
    const MemorySample sample = {static_cast<std::int64_t>(moment), phaseAt(graph, replay, moment),
                                 alive};
    if (moment == 0 || stretch_of[moment] != stretch_of[moment - 1]) {
      samples.push_back(sample);
    } else if (alive.total() > samples.back().memory.total()) {
      samples.back() = sample;
    }
  }
  return samples;
}

}  // namespace shardwright
