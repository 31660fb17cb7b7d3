// Lagrangian dual of the memory rows over message passing: subgradient steps on the multipliers,
// one sweep each. Anytime; used where exact elimination is too wide.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "intraop/message_memory.h"
#include "intraop/message_passing.h"
#include "intraop/work_meter.h"

namespace shardwright {

struct MessageDualOptions {
  double time_limit_s = 10.0;     // nominal seconds, see WorkMeter
  bool keep_multipliers = false;  // the start is known to be good: only sweep
  // Cost of the best known choice: no bound above it is needed, and gains that are small beside
  // what is missing to it count as a stall. Asked again and again, as on_labels may lower it.
  std::function<double()> target;
  std::function<bool()> stop;
  std::function<void(double)> on_bound;
  // Called with the choice read off after a sweep; may take long.
  std::function<void(const std::vector<int32_t>&)> on_labels;
  // Asked now and then with the marginals of the moment: true ends the run with them.
  std::function<bool(const MarginalResult&)> enough;
  // Messages and ascent of an earlier run to go on from; holds this run's afterwards.
  MessageMemory* memory = nullptr;
};

struct MessageDualResult {
  double bound = -kInfinity;
  std::vector<double> multipliers;  // per row, of the best bound
  MarginalResult marginals;         // those of the last sweep, or empty
  int num_sweeps = 0;
  bool stalled = false;                            // ended because the bound no longer rises
  std::vector<std::pair<int32_t, int32_t>> joins;  // worth doing before going on; only when stalled
};

// start: multipliers to begin with (empty = none).
MessageDualResult maximiseByMessages(const ReducedProblem& problem,
                                     const MessageDualOptions& options, WorkMeter& meter,
                                     const std::vector<double>& start = {});

}  // namespace shardwright
