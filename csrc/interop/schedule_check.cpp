#include "interop/schedule_check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace shardwright {
namespace {

constexpr std::size_t kMostErrors = 20;

// A tensor on its way: microbatch, direction and the two stages.
struct Parcel {
  StageId from;
  StageId to;
  bool is_forward = true;
  std::int32_t microbatch = 0;

  friend auto operator<=>(const Parcel&, const Parcel&) = default;
};

Parcel parcelOf(const Action& action) {
  const bool is_forward =
      action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveForward;
  const bool sends =
      action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
  return {sends ? action.stage : action.peer, sends ? action.peer : action.stage, is_forward,
          action.microbatch};
}

class Model {
 public:
  Model(const Schedule& schedule, TransferModel model, CommunicatorScope scope)
      : schedule_(schedule), model_(model), scope_(scope), next_(schedule.actions.size(), 0) {
    report_.most_in_flight.assign(schedule.rank_of_stage.size(), 0);
  }

  ScheduleReport run() {
    checkCompleteness();
    // Lists that name foreign stages cannot be run.
    if (report_.errors.empty() || !has_foreign_) {
      while (advanceAll()) {
      }
      reportWaits();
      countInFlight();
    }
    return std::move(report_);
  }

 private:
  using Communicator = std::tuple<std::size_t, std::size_t, bool>;
  struct Queues {
    std::deque<Parcel> side[2];
  };

  const std::vector<Action>& list(std::size_t rank) const { return schedule_.actions[rank]; }

  std::int32_t rankOf(StageId stage) const { return schedule_.rank_of_stage[stage.index()]; }

  void error(const std::string& line) {
    if (report_.errors.size() < kMostErrors) report_.errors.push_back(line);
  }

  bool isForeign(const Action& action) const {
    const auto outside = [&](StageId stage) {
      return !stage.isValid() || stage.index() >= schedule_.rank_of_stage.size();
    };
    return outside(action.stage) || (action.isTransfer() && outside(action.peer)) ||
           action.microbatch < 0 || action.microbatch >= schedule_.num_microbatches;
  }

  // What must occur, against what does.
  void checkCompleteness() {
    std::map<Action, int> found;
    for (std::size_t rank = 0; rank < schedule_.actions.size(); ++rank) {
      for (const Action& action : list(rank)) {
        if (isForeign(action)) {
          has_foreign_ = true;
          error("rank " + std::to_string(rank) + " names a stage or microbatch that is none");
          continue;
        }
        if (rankOf(action.stage) != static_cast<std::int32_t>(rank)) {
          error(toText(action) + " is in the list of rank " + std::to_string(rank) + ", not of " +
                std::to_string(rankOf(action.stage)));
        }
        if (++found[action] == 2) error(toText(action) + " occurs twice");
      }
    }
    const auto take = [&](StageId stage, ActionKind kind, std::int32_t m, StageId peer = {}) {
      return found.erase(Action{stage, kind, m, peer}) > 0;
    };
    const auto demand = [&](StageId stage, ActionKind kind, std::int32_t m, StageId peer = {}) {
      if (!take(stage, kind, m, peer)) error(toText({stage, kind, m, peer}) + " is missing");
    };
    for (std::int32_t m = 0; m < schedule_.num_microbatches; ++m) {
      for (std::size_t s = 0; s < schedule_.rank_of_stage.size(); ++s) {
        demand(StageId(s), ActionKind::kForward, m);
        if (take(StageId(s), ActionKind::kBackward, m)) continue;
        demand(StageId(s), ActionKind::kBackwardInput, m);
        demand(StageId(s), ActionKind::kBackwardWeight, m);
      }
      for (const StageEdge& edge : schedule_.edges) {
        if (rankOf(edge.from) == rankOf(edge.to)) continue;
        demand(edge.from, ActionKind::kSendForward, m, edge.to);
        demand(edge.to, ActionKind::kReceiveForward, m, edge.from);
        if (!edge.has_gradient) continue;
        demand(edge.to, ActionKind::kSendBackward, m, edge.from);
        demand(edge.from, ActionKind::kReceiveBackward, m, edge.to);
      }
    }
    for (const auto& [action, count] : found) error(toText(action) + " has no place");
  }

  bool advanceAll() {
    bool progress = false;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      while (advance(rank)) progress = true;
    }
    return progress;
  }

  const Action* front(std::size_t rank) const {
    return next_[rank] < list(rank).size() ? &list(rank)[next_[rank]] : nullptr;
  }

  bool advance(std::size_t rank) {
    const Action* action = front(rank);
    if (action == nullptr) return false;
    if (!action->isTransfer()) {
      if (awaited(*action)) return false;
      finishComputation(*action);
      ++next_[rank];
      return true;
    }
    if (action->isSend()) checkSend(*action);
    if (model_ == TransferModel::kQueued) {
      enqueue(*action);
      ++next_[rank];
      return true;
    }
    const auto peer_rank = static_cast<std::size_t>(rankOf(action->peer));
    const Action* other = front(peer_rank);
    if (peer_rank == rank || other == nullptr || !other->isTransfer() ||
        other->isSend() == action->isSend() || parcelOf(*other) != parcelOf(*action)) {
      return false;
    }
    if (other->isSend()) checkSend(*other);
    arrived_.insert(parcelOf(*action));
    ++next_[rank];
    ++next_[peer_rank];
    return true;
  }

  void enqueue(const Action& action) {
    const Parcel parcel = parcelOf(action);
    if (!action.isSend()) posted_.insert(parcel);
    const auto end = [&](StageId stage) {
      return scope_ == CommunicatorScope::kRankPair ? static_cast<std::size_t>(rankOf(stage))
                                                    : stage.index();
    };
    const auto [low, high] = std::minmax({end(parcel.from), end(parcel.to)});
    const bool forward_only =
        scope_ == CommunicatorScope::kStagePairDirection ? parcel.is_forward : true;
    Queues& queues = queues_[{low, high, forward_only}];
    queues.side[end(action.stage) == low ? 0 : 1].push_back(parcel);
    // The two sides agree on an entry when one sends what the other receives; a parcel names its
    // sender, so equal parcels on both sides are such a pair.
    while (!queues.side[0].empty() && !queues.side[1].empty() &&
           queues.side[0].front() == queues.side[1].front()) {
      arrived_.insert(queues.side[0].front());
      queues.side[0].pop_front();
      queues.side[1].pop_front();
    }
  }

  // The parcels a computation needs from other ranks; what it needs from its own must be done.
  std::vector<Parcel> needs(const Action& action) {
    std::vector<Parcel> parcels;
    const bool is_forward = action.kind == ActionKind::kForward;
    if (action.kind == ActionKind::kBackwardWeight) return parcels;
    for (const StageEdge& edge : schedule_.edges) {
      if (is_forward ? edge.to != action.stage
                     : (edge.from != action.stage || !edge.has_gradient)) {
        continue;
      }
      const StageId source = is_forward ? edge.from : edge.to;
      parcels.push_back({source, action.stage, is_forward, action.microbatch});
    }
    return parcels;
  }

  // A posted receive that the computation has to wait for.
  std::optional<Parcel> awaited(const Action& action) {
    if (model_ == TransferModel::kRendezvous) return std::nullopt;
    for (const Parcel& parcel : needs(action)) {
      if (posted_.contains(parcel) && !arrived_.contains(parcel)) return parcel;
    }
    return std::nullopt;
  }

  bool isDone(StageId stage, bool is_forward, std::int32_t microbatch) const {
    return is_forward ? forwards_.contains({stage, microbatch})
                      : backwards_.contains({stage, microbatch});
  }

  void finishComputation(const Action& action) {
    const std::pair where{action.stage, action.microbatch};
    if (action.kind == ActionKind::kBackwardWeight && !backwards_.contains(where)) {
      error(toText(action) + " comes before its I");
    }
    if (action.kind != ActionKind::kForward && !forwards_.contains(where)) {
      error(toText(action) + " comes before its F");
    }
    for (const Parcel& parcel : needs(action)) {
      const bool local = rankOf(parcel.from) == rankOf(parcel.to);
      if (local ? !isDone(parcel.from, parcel.is_forward, parcel.microbatch)
                : !arrived_.contains(parcel)) {
        error(toText(action) + " comes before what it needs from stage " +
              std::to_string(parcel.from.index()));
      }
    }
    if (action.kind == ActionKind::kForward) {
      forwards_.insert(where);
    } else if (action.kind != ActionKind::kBackwardWeight) {
      backwards_.insert(where);
    }
  }

  void checkSend(const Action& action) {
    const bool is_forward = action.kind == ActionKind::kSendForward;
    if (!isDone(action.stage, is_forward, action.microbatch) &&
        early_sends_.insert(action).second) {
      error(toText(action) + " comes before its computation");
    }
  }

  std::string causeOf(const Action& action) {
    StageId peer = action.peer;
    if (!action.isTransfer()) peer = awaited(action)->from;
    const auto rank = static_cast<std::size_t>(rankOf(peer));
    std::string cause = "for rank " + std::to_string(rank);
    if (const Action* other = front(rank)) return cause + ", which is at " + toText(*other);
    if (model_ == TransferModel::kRendezvous) return cause + ", which has finished";
    return cause + ", with which it uses the communicator in another order";
  }

  void reportWaits() {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (const Action* action = front(rank)) {
        report_.deadlock.push_back({static_cast<std::int32_t>(rank), *action, causeOf(*action)});
      }
    }
    // Queued transfers that no computation waits for must pass as well.
    for (const auto& [communicator, queues] : queues_) {
      for (const auto& side : queues.side) {
        if (side.empty() || !report_.deadlock.empty()) continue;
        const Parcel& parcel = side.front();
        const Action action{
            parcel.from, parcel.is_forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
            parcel.microbatch, parcel.to};
        report_.deadlock.push_back({rankOf(parcel.from), action,
                                    "for rank " + std::to_string(rankOf(parcel.to)) +
                                        ", with which it uses the communicator in another order"});
      }
    }
  }

  void countInFlight() {
    for (const auto& actions : schedule_.actions) {
      std::map<StageId, std::int32_t> now;
      for (const Action& action : actions) {
        std::int32_t& most = report_.most_in_flight[action.stage.index()];
        if (action.kind == ActionKind::kForward) most = std::max(most, ++now[action.stage]);
        if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) {
          --now[action.stage];
        }
      }
    }
  }

  const Schedule& schedule_;
  TransferModel model_;
  CommunicatorScope scope_;
  std::vector<std::size_t> next_;
  std::set<std::pair<StageId, std::int32_t>> forwards_;
  std::set<std::pair<StageId, std::int32_t>> backwards_;
  std::set<Parcel> posted_;
  std::set<Parcel> arrived_;
  std::set<Action> early_sends_;
  std::map<Communicator, Queues> queues_;
  ScheduleReport report_;
  bool has_foreign_ = false;
};

}  // namespace

std::string ScheduleReport::text() const {
  std::string lines;
  for (const std::string& line : errors) lines += line + "\n";
  for (const Wait& wait : deadlock) {
    lines += "rank " + std::to_string(wait.rank) + " waits at " + toText(wait.action) + " " +
             wait.cause + "\n";
  }
  return lines;
}

ScheduleReport checkSchedule(const Schedule& schedule, TransferModel model,
                             CommunicatorScope scope) {
  return Model(schedule, model, scope).run();
}

}  // namespace shardwright
