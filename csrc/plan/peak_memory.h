// How much of one device's memory a replayed plan takes, and when.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "plan/plan.h"
#include "plan/replay.h"

namespace shardwright {

// What the other microbatches of a pipeline stage hold while one is computed.
struct WaitingMicrobatches {
  std::int64_t bytes = 0;
  std::int64_t end = 0;  // first moment after backward: from there on none waits
};

// With `microbatches_in_flight` of them, all but one have their forward done and their backward
// before them: each holds the buffers that are there once per microbatch, made until the last
// moment of forward before backward's last, and read later. Where backward has a late part, some
// wait for that instead, with what is alive when it begins: each counts with all that it has at
// either time. None waits where there is no backward.
WaitingMicrobatches waitingMicrobatches(const Graph& graph, const Replay& replay,
                                        int microbatches_in_flight);

// Phase of the op at a moment; moment 0, before the first op, counts as forward.
Phase phaseAt(const Graph& graph, const Replay& replay, std::size_t moment);

// Adds bytes of a kind, or takes them away.
void addBytes(MemoryAtPeak& memory, BufferKind kind, std::int64_t bytes);

// Peak over the moments of the bytes alive, and what they are. What waits counts as activations.
struct PeakMemory {
  std::int64_t bytes = 0;
  std::int64_t moment = 0;
  MemoryAtPeak by_kind;
  int largest = -1;  // index of the largest buffer alive at the peak
};
PeakMemory peakMemory(const Replay& replay, const WaitingMicrobatches& waiting);

}  // namespace shardwright
