// When everything of a schedule happens, given the time of each computation and transfer.
#pragma once

#include <cstdint>
#include <vector>

#include "interop/schedule.h"

namespace shardwright {

// Of one stage; per microbatch, except for the last two. A full backward takes input plus weight.
struct StageTimes {
  double forward_us = 0;
  double backward_input_us = 0;
  double backward_weight_us = 0;
  double once_us = 0;   // after the last microbatch: gradient reduction, update
  double ready_us = 0;  // it computes nothing before: what it needs once per step is on its way
};

// Of one edge, per microbatch.
struct EdgeTimes {
  double forward_us = 0;
  double backward_us = 0;
};

enum class TransferTiming : std::uint8_t {
  // Each direction between two stages has a link of its own; a transfer starts when its tensor
  // exists and the link is free, in the order of the sender's list. Only the computation that needs
  // the tensor waits; receives count as posted early enough.
  kOverlapped,
  // A transfer starts when both ranks have come to it, and both wait until it is over.
  kBlocking,
};

struct TimedAction {
  std::int32_t rank = 0;
  Action action;
  double start_us = 0;
  double end_us = 0;
};

struct Simulation {
  double time_us = 0;      // of the step, `once_us` included
  double pipeline_us = 0;  // until the last action of any list has ended
  // Share of pipeline_us in which ranks do not compute, over all ranks. Balanced, without
  // transfers: (S - 1) / (B + S - 1) for GPipe and 1F1B, (S - 1) / (V B + S - 1) interleaved on S
  // ranks, (S - 1)(F + I - W) / (B (F + I + W) + (S - 1)(F + I - W)) for zero-bubble.
  double bubble_share = 0;
  std::vector<double> busy_us;               // by rank: computation
  std::vector<double> end_us;                // by rank: of its last computation
  std::vector<std::int32_t> most_in_flight;  // by stage: microbatches whose activations are held
  // Computations and transfers by rank, in the order of the lists; a transfer is listed at its
  // sender, for the time it takes the link (kOverlapped) or both ranks (kBlocking).
  std::vector<TimedAction> actions;
};

// Runs the schedule. `stages` by stage, `edges` in the order of schedule.edges.
// Throws ConfigError [E554] for lists that cannot finish, or times that are negative, not finite or
// of another number than stages and edges.
Simulation simulate(const Schedule& schedule, const std::vector<StageTimes>& stages,
                    const std::vector<EdgeTimes>& edges,
                    TransferTiming timing = TransferTiming::kOverlapped);

}  // namespace shardwright
