#include "intraop/message_memory.h"

#include <algorithm>

namespace shardwright {
namespace {

uint64_t keyOf(int32_t from, int32_t to) {
  return (static_cast<uint64_t>(from) << 32) | static_cast<uint64_t>(to);
}

}  // namespace

void MessageMemory::store(const ReducedProblem& problem, const MessagePassing& passing) {
  messages_.clear();
  is_known_.clear();
  // The node, or joint variable, that a variable began as tells its values apart.
  const auto own = [&](int32_t v) -> const Member& {
    const ReducedVariable& variable = problem.variables()[static_cast<size_t>(v)];
    const bool is_joint =
        !variable.joints.empty() && variable.joints.front().node == variable.reduction_variable;
    return is_joint ? variable.joints.front() : variable.members.front();
  };
  const auto put = [&](int32_t from, int32_t to, std::span<const double> message) {
    const std::vector<int32_t>& strategies = pool_->list(own(to).strategies);
    const int32_t most = *std::max_element(strategies.begin(), strategies.end());
    std::vector<double> by_strategy(static_cast<size_t>(most) + 1, 0.0);
    for (size_t a = 0; a < strategies.size(); ++a) {
      by_strategy[static_cast<size_t>(strategies[a])] = message[a];
    }
    const int32_t sender = own(from).node;
    if (static_cast<size_t>(sender) >= is_known_.size()) {
      is_known_.resize(static_cast<size_t>(sender) + 1, 0);
    }
    is_known_[static_cast<size_t>(sender)] = 1;
    messages_.emplace(keyOf(sender, own(to).node), std::move(by_strategy));
  };
  for (size_t e = 0; e < problem.edges().size(); ++e) {
    const ReducedEdge& edge = problem.edges()[e];
    put(edge.v, edge.u, passing.messageToU(e));
    put(edge.u, edge.v, passing.messageToV(e));
  }
}

void MessageMemory::recall(const ReducedProblem& problem, MessagePassing& passing) const {
  if (messages_.empty()) return;
  std::vector<std::vector<const Member*>> known(problem.variables().size());
  for (size_t v = 0; v < known.size(); ++v) {
    for (const auto* members : {&problem.variables()[v].members, &problem.variables()[v].joints}) {
      for (const Member& member : *members) {
        const auto node = static_cast<size_t>(member.node);
        if (node < is_known_.size() && is_known_[node]) known[v].push_back(&member);
      }
    }
  }
  std::vector<double> message;
  const auto gather = [&](int32_t from, int32_t to) -> const std::vector<double>& {
    message.assign(problem.variables()[static_cast<size_t>(to)].costs.size(), 0.0);
    for (const Member* sender : known[static_cast<size_t>(from)]) {
      for (const Member* receiver : known[static_cast<size_t>(to)]) {
        const auto it = messages_.find(keyOf(sender->node, receiver->node));
        if (it == messages_.end()) continue;
        const std::vector<int32_t>& strategies = pool_->list(receiver->strategies);
        for (size_t a = 0; a < message.size(); ++a) {
          const auto strategy = static_cast<size_t>(strategies[a]);
          if (strategy < it->second.size()) message[a] += it->second[strategy];
        }
      }
    }
    return message;
  };
  for (size_t e = 0; e < problem.edges().size(); ++e) {
    const ReducedEdge& edge = problem.edges()[e];
    passing.setMessageToU(e, gather(edge.v, edge.u));
    passing.setMessageToV(e, gather(edge.u, edge.v));
  }
}

void MessageMemory::storeAscent(const ReducedProblem& problem, const std::vector<double>& direction,
                                double target_gain) {
  direction_of_row_.clear();
  for (size_t row = 0; row < direction.size(); ++row) {
    direction_of_row_[problem.layoutRows()[row]] = direction[row];
  }
  target_gain_ = target_gain;
}

std::vector<double> MessageMemory::recallDirection(const ReducedProblem& problem) const {
  std::vector<double> direction;
  for (int32_t row : problem.layoutRows()) {
    const auto it = direction_of_row_.find(row);
    direction.push_back(it == direction_of_row_.end() ? 0.0 : it->second);
  }
  return direction;
}

}  // namespace shardwright
