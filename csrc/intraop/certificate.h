// Independent check of the solver's answers. Works from the Problem alone and shares no code with
// the solver; it is the only place that may call an answer optimal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "intraop/problem.h"

namespace shardwright {

enum class SolveStatus {
  kOptimal,     // a valid choice whose cost equals the proven lower bound
  kFeasible,    // a valid choice; the gap is what is left between bound and cost
  kInfeasible,  // no choice exists; see InfeasibilityProof
  kTimeLimit,   // the time ran out; the choice may be empty
};

// How it was shown that no choice exists.
enum class InfeasibilityProof {
  kNone,
  kPropagation,  // exact propagation emptied a node's list of strategies
  kMemoryFloor,  // the least bytes alive at one time already exceed the limit
  kDualBound,    // a Lagrangian bound on the peak exceeds the limit
  kEnumeration,  // exact elimination or exhaustive search found nothing
};

enum class StopCause { kFinished, kTimeLimit, kInterrupted, kGapReached };

// What the solver says; nothing in it is believed before certify.
struct Claim {
  std::vector<int32_t> choice;  // strategy per node; empty when none was found
  int64_t cost = 0;
  std::optional<int64_t> lower_bound;
  InfeasibilityProof proof = InfeasibilityProof::kNone;
  StopCause stop = StopCause::kFinished;
};

// Cost and peak of one choice, recomputed.
struct Evaluation {
  std::string violation;  // empty when the choice is valid
  int64_t cost = 0;
  int64_t peak_bytes = 0;
  int64_t peak_time = 0;  // first program point at which the peak is reached
  bool valid() const { return violation.empty(); }
};

// Cost (128-bit sums) and peak memory (own sweep) of a choice, and the first rule it breaks.
Evaluation evaluateChoice(const Problem& problem, std::span<const int32_t> choice);

// Seconds spent in one phase of the search.
struct PhaseTime {
  std::string phase;
  double seconds = 0.0;
};

// A certified answer. cost and gap are meaningful when choice is not empty.
struct Answer {
  std::vector<int32_t> choice;
  int64_t cost = 0;
  std::optional<int64_t> lower_bound;
  double gap = 0.0;  // (cost - lower_bound) / max(1, |cost|); infinity without a bound
  int64_t peak_bytes = 0;
  SolveStatus status = SolveStatus::kTimeLimit;
  InfeasibilityProof proof = InfeasibilityProof::kNone;
  StopCause stop = StopCause::kFinished;
  // Only when infeasible: the smallest peak found (a limit that would do) and a proven floor.
  std::optional<int64_t> smallest_peak_bytes;
  std::optional<int64_t> smallest_peak_bound_bytes;
  std::vector<PhaseTime> phases;
  double seconds = 0.0;
};

// The reason why a claim does not hold, or nothing when it does. That no choice exists is checked
// where there are few enough to try them all, and believed where there are not.
std::optional<std::string> rejectionOf(const Problem& problem, const Claim& claim);

// Turns a claim into an answer: recomputes cost, peak and gap and decides the status.
// Throws Error E921 when the claim does not hold.
Answer certify(const Problem& problem, const Claim& claim);

// Names used in JSON: "optimal", "feasible", "infeasible", "time_limit".
const char* toString(SolveStatus status);
const char* toString(InfeasibilityProof proof);

}  // namespace shardwright
