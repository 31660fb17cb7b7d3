// One run of the solver: what is reduced, known and left to do. Each phase narrows the distance
// between the incumbent and the bound; solve() is its only user.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "intraop/certificate.h"
#include "intraop/memory_rows.h"
#include "intraop/reduced_problem.h"
#include "intraop/reduction.h"
#include "intraop/solve.h"

namespace shardwright {

class Search {
 public:
  Search(const Problem& problem, const SolveOptions& options);

  // Runs all phases; the claim is not certified yet.
  Claim run();
  const std::vector<PhaseTime>& phases() const { return phases_; }
  double seconds() const;

 private:
  class Phase;

  bool outOfTime() const;
  bool stopped() const;
  double secondsLeft() const;
  bool closed() const;

  // Phases. Each returns true when the search is over.
  bool reduce();
  bool solveExactly(const ReducedProblem& reduced);
  bool enumerate(const ReducedProblem& reduced);
  bool finishWithIntegerProgram(const ReducedProblem& reduced);

  // Records a choice when it is valid and better than the incumbent.
  bool consider(const ReducedProblem& reduced, std::span<const int32_t> labels);
  void considerChoice(std::vector<int32_t> choice);
  // Records a proven bound in the reduction's (shifted) units.
  void raiseBound(double bound);
  // The incumbent in the reduced problem's values, when it is still representable there.
  std::optional<std::vector<int32_t>> incumbentLabels(const ReducedProblem& reduced) const;
  void report();
  Claim claim() const;

  const Problem& problem_;
  const SolveOptions& options_;
  std::chrono::steady_clock::time_point start_;
  Reduction reduction_;
  MemoryLayout layout_;
  std::vector<int32_t> incumbent_;
  int64_t incumbent_cost_ = 0;
  std::optional<int64_t> lower_bound_;
  InfeasibilityProof proof_ = InfeasibilityProof::kNone;
  bool cut_short_ = false;
  std::vector<PhaseTime> phases_;
  std::string phase_name_;
  std::chrono::steady_clock::time_point last_report_;
};

}  // namespace shardwright
