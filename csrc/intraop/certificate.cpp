#include "intraop/certificate.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/checked.h"
#include "base/error.h"

namespace shardwright {
namespace {

bool fitsInt64(Int128 value) {
  return value >= std::numeric_limits<int64_t>::min() &&
         value < std::numeric_limits<int64_t>::max();
}

// Proofs that no choice exists are checked on problems with at most this many choices.
constexpr size_t kMaxTriedChoices = 1000;

// A choice that breaks no rule, when there are few enough to try them all and one is valid.
std::optional<std::vector<int32_t>> findAnyChoice(const Problem& problem) {
  size_t num_choices = 1;
  for (const ChoiceNode& node : problem.nodes()) {
    num_choices *= node.costs.size();
    if (num_choices > kMaxTriedChoices) return std::nullopt;
  }
  std::vector<int32_t> choice(problem.numNodes(), 0);
  for (size_t k = 0; k < num_choices; ++k) {
    size_t rest = k;
    for (size_t n = 0; n < choice.size(); ++n) {
      choice[n] = static_cast<int32_t>(rest % problem.nodes()[n].costs.size());
      rest /= problem.nodes()[n].costs.size();
    }
    if (evaluateChoice(problem, choice).valid()) return choice;
  }
  return std::nullopt;
}

}  // namespace

Evaluation evaluateChoice(const Problem& problem, std::span<const int32_t> choice) {
  Evaluation result;
  if (choice.size() != problem.numNodes()) {
    result.violation = "the choice has " + std::to_string(choice.size()) + " entries for " +
                       std::to_string(problem.numNodes()) + " nodes";
    return result;
  }
  Int128 cost = 0;
  std::map<int64_t, Int128> change_at;  // program point -> bytes that appear or go there
  for (size_t n = 0; n < choice.size(); ++n) {
    const ChoiceNode& node = problem.nodes()[n];
    const int32_t strategy = choice[n];
    if (strategy < 0 || static_cast<size_t>(strategy) >= node.costs.size()) {
      result.violation =
          "node " + std::to_string(n) + " has no strategy " + std::to_string(strategy);
      return result;
    }
    const auto s = static_cast<size_t>(strategy);
    if (node.costs[s] == kForbidden) {
      result.violation = "strategy " + std::to_string(strategy) + " of node " + std::to_string(n) +
                         " is forbidden";
      return result;
    }
    cost += node.costs[s];
    for (const MemoryPiece& piece : node.memory) {
      if (piece.interval.begin >= piece.interval.end) continue;
      change_at[piece.interval.begin] += piece.bytes[s];
      change_at[piece.interval.end] -= piece.bytes[s];
    }
  }
  for (size_t e = 0; e < problem.edges().size(); ++e) {
    const ChoiceEdge& edge = problem.edges()[e];
    int32_t row = choice[edge.u.index()];
    int32_t col = choice[edge.v.index()];
    if (edge.transposed) std::swap(row, col);
    const int64_t entry = problem.tables()[edge.table.index()]->at(row, col);
    if (entry == kForbidden) {
      result.violation = "edge " + std::to_string(e) + " forbids the chosen pair";
      return result;
    }
    cost += entry;
  }
  Int128 alive = 0;
  Int128 peak = 0;
  for (const auto& [time, change] : change_at) {
    alive += change;
    if (alive > peak) {
      peak = alive;
      result.peak_time = time;
    }
  }
  if (!fitsInt64(cost) || !fitsInt64(peak)) {
    result.violation = "cost or peak leaves the int64 range";
    return result;
  }
  result.cost = static_cast<int64_t>(cost);
  result.peak_bytes = static_cast<int64_t>(peak);
  if (problem.memoryLimitBytes() && result.peak_bytes > *problem.memoryLimitBytes()) {
    result.violation = "peak of " + std::to_string(result.peak_bytes) + " bytes at point " +
                       std::to_string(result.peak_time) + " exceeds the limit of " +
                       std::to_string(*problem.memoryLimitBytes());
  }
  return result;
}

std::optional<std::string> rejectionOf(const Problem& problem, const Claim& claim) {
  if (claim.proof != InfeasibilityProof::kNone) {
    if (!claim.choice.empty()) return "a choice comes with a proof that none exists";
    if (claim.stop != StopCause::kFinished) return "a proof of infeasibility was cut short";
    if (const auto choice = findAnyChoice(problem)) {
      return "a choice of cost " + std::to_string(evaluateChoice(problem, *choice).cost) +
             " exists against a proof that none does";
    }
    return std::nullopt;
  }
  if (claim.choice.empty() && problem.numNodes() > 0) {
    if (claim.stop == StopCause::kFinished) return "neither a choice nor a proof that none exists";
    return std::nullopt;
  }
  const Evaluation found = evaluateChoice(problem, claim.choice);
  if (!found.valid()) return found.violation;
  if (found.cost != claim.cost) {
    return "claimed cost " + std::to_string(claim.cost) + ", recomputed " +
           std::to_string(found.cost);
  }
  if (claim.lower_bound && *claim.lower_bound > found.cost) {
    return "lower bound " + std::to_string(*claim.lower_bound) + " exceeds the cost " +
           std::to_string(found.cost);
  }
  return std::nullopt;
}

Answer certify(const Problem& problem, const Claim& claim) {
  if (const auto reason = rejectionOf(problem, claim)) {
    throw Error(ErrorKind::kInternal, "E921", "the solver's answer does not hold: " + *reason + ".",
                {.values = {"problem '" + problem.name() + "', " +
                            std::to_string(problem.numNodes()) + " nodes"},
                 .advice = "report this with the problem file"});
  }
  Answer answer;
  answer.choice = claim.choice;
  answer.lower_bound = claim.lower_bound;
  answer.proof = claim.proof;
  answer.stop = claim.stop;
  answer.gap = std::numeric_limits<double>::infinity();
  if (claim.proof != InfeasibilityProof::kNone) {
    answer.status = SolveStatus::kInfeasible;
    return answer;
  }
  if (claim.choice.empty() && problem.numNodes() > 0) {
    answer.status = SolveStatus::kTimeLimit;
    return answer;
  }
  const Evaluation found = evaluateChoice(problem, claim.choice);
  answer.cost = found.cost;
  answer.peak_bytes = found.peak_bytes;
  if (claim.lower_bound) {
    const auto distance = static_cast<Int128>(found.cost) - *claim.lower_bound;
    const auto scale = std::max<Int128>(1, found.cost < 0 ? -Int128{found.cost} : found.cost);
    answer.gap = static_cast<double>(distance) / static_cast<double>(scale);
  }
  if (claim.lower_bound && *claim.lower_bound == found.cost) {
    answer.status = SolveStatus::kOptimal;
  } else if (claim.stop == StopCause::kTimeLimit) {
    answer.status = SolveStatus::kTimeLimit;
  } else {
    answer.status = SolveStatus::kFeasible;
  }
  return answer;
}

const char* toString(SolveStatus status) {
  switch (status) {
    case SolveStatus::kOptimal:
      return "optimal";
    case SolveStatus::kFeasible:
      return "feasible";
    case SolveStatus::kInfeasible:
      return "infeasible";
    case SolveStatus::kTimeLimit:
      return "time_limit";
  }
  return "unknown";
}

const char* toString(InfeasibilityProof proof) {
  switch (proof) {
    case InfeasibilityProof::kNone:
      return "none";
    case InfeasibilityProof::kPropagation:
      return "propagation";
    case InfeasibilityProof::kMemoryFloor:
      return "memory_floor";
    case InfeasibilityProof::kDualBound:
      return "dual_bound";
    case InfeasibilityProof::kEnumeration:
      return "enumeration";
  }
  return "unknown";
}

}  // namespace shardwright
