// Receives posted ahead of the computation before the one that needs them.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "interop/schedule.h"

namespace shardwright {
namespace {

// Whether `computation` is what waits for the tensor that `receive` brings.
bool isNeededBy(const Action& receive, const Action& computation) {
  if (receive.stage != computation.stage || receive.microbatch != computation.microbatch) {
    return false;
  }
  return receive.kind == ActionKind::kReceiveForward
             ? computation.kind == ActionKind::kForward
             : computation.kind == ActionKind::kBackward ||
                   computation.kind == ActionKind::kBackwardInput;
}

bool isReceive(const Action& action) { return action.isTransfer() && !action.isSend(); }

class Mover {
 public:
  Mover(const std::vector<Action>& list, const std::vector<std::int32_t>& rank_of_stage)
      : list_(list), rank_of_stage_(rank_of_stage) {}

  std::vector<Action> run() {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const auto place =
          isReceive(list_[i]) && isNeededNext(i) ? earliestPlace(list_[i].peer) : result_.size();
      result_.insert(result_.begin() + static_cast<std::ptrdiff_t>(place), list_[i]);
    }
    return std::move(result_);
  }

 private:
  bool isNeededNext(std::size_t receive) const {
    const auto next =
        std::find_if(list_.begin() + static_cast<std::ptrdiff_t>(receive), list_.end(),
                     [](const Action& action) { return !action.isTransfer(); });
    return next != list_.end() && isNeededBy(list_[receive], *next);
  }

  // In front of the last computation so far, unless a transfer with the same rank follows it.
  std::size_t earliestPlace(StageId peer) const {
    for (std::size_t place = result_.size(); place > 0; --place) {
      const Action& before = result_[place - 1];
      if (!before.isTransfer()) return place - 1;
      if (rankOf(before.peer) == rankOf(peer)) break;
    }
    return result_.size();
  }

  std::int32_t rankOf(StageId stage) const { return rank_of_stage_[stage.index()]; }

  const std::vector<Action>& list_;
  const std::vector<std::int32_t>& rank_of_stage_;
  std::vector<Action> result_;
};

}  // namespace

Schedule postReceivesEarly(const Schedule& schedule) {
  Schedule early = schedule;
  for (std::vector<Action>& list : early.actions) {
    list = Mover(list, schedule.rank_of_stage).run();
  }
  return early;
}

}  // namespace shardwright
