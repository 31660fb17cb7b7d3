// Memory of one device over the moments of a step, sampled for reports.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/peak_memory.h"
#include "plan/plan.h"
#include "plan/replay.h"

namespace shardwright {

// At most `max_samples` moments, in order: the moments are cut into as many stretches, each phase
// of the step into equally many, and of each stretch the moment with most bytes alive is kept, so
// that the peak is among them.
//
// Example: 6 moments, 3 of forward and 3 of update, with 1 5 2 8 3 3 bytes alive and 2 samples give
// moments 1 and 3.
std::vector<MemorySample> memoryTimeline(const Graph& graph, const Replay& replay,
                                         const WaitingMicrobatches& waiting, int max_samples);

}  // namespace shardwright
