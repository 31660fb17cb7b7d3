// Exact elimination with memory: every table entry holds the Pareto front of (cost, bytes at the
// tracked rows) of what was eliminated into it, cut down to what can still be part of a choice
// within the cutoff. Repeated layers are computed once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "intraop/elimination.h"
#include "intraop/reduced_problem.h"
#include "intraop/work_meter.h"

namespace shardwright {

inline constexpr size_t kMaxTrackedRows = 3;

struct ParetoOptions {
  // Points kept per table entry; cheaper bounds first. Fewer than needed make a heuristic of it.
  size_t max_front = 1'000'000;
  size_t max_points = 20'000'000;  // in all fronts together
  size_t max_entries = 2'000'000;  // table entries that are visited
  size_t max_sums = 300'000'000;   // pairs of points that are added up
  std::function<bool()> stop;
};

struct ParetoResult {
  bool finished = false;  // not stopped, and within max_points, max_entries and max_sums
  bool truncated = false;
  // Every choice within the tracked rows costs at least this; -infinity unless finished.
  double bound = -kInfinity;
  // The cheapest choices found within the tracked rows and the cutoff, cheapest first; other rows
  // may be overloaded. When not truncated, the first is the cheapest of all.
  std::vector<std::vector<int32_t>> labels;
  size_t num_entries = 0;
  size_t num_points = 0;
};

class ParetoElimination {
 public:
  // Tracks the given rows of problem (1 to kMaxTrackedRows). problem and elimination must outlive
  // this.
  ParetoElimination(const ReducedProblem& problem, const Elimination& elimination,
                    std::vector<int32_t> rows);
  ~ParetoElimination();

  // Adds a bound to cut with: the Lagrangian under these multipliers (one per tracked row). False
  // when it is not exact in double, or stopped.
  bool addMultipliers(const std::vector<double>& multipliers, const std::function<bool()>& stop);
  // The best bound of the multipliers added.
  double bound() const;
  // The choice that attains the last one's.
  const std::vector<int32_t>& labels() const { return labels_; }

  // Per variable the values (ascending) of every choice of at most cutoff that fits the rows, and
  // some others; nothing when stopped or when there are too many entries.
  std::optional<std::vector<std::vector<int32_t>>> possibleValues(double cutoff,
                                                                  const ParetoOptions& options,
                                                                  WorkMeter& meter) const;

  // Finds the cheapest choice of at most cutoff (whole units). At least one vector of multipliers
  // must have been added.
  ParetoResult solve(double cutoff, const ParetoOptions& options, WorkMeter& meter) const;

 private:
  struct Child;
  struct Class;
  struct ClassPrices;
  struct Priced;
  template <size_t kRows>
  class Pass;

  void findClasses();

  const ReducedProblem& problem_;
  const Elimination& elimination_;
  std::vector<int32_t> rows_;
  std::vector<std::vector<std::vector<int64_t>>> bytes_;  // variable, tracked row, value
  // variable, tracked row: the first tracked row of the same memory segment
  std::vector<std::vector<int32_t>> segments_;
  std::vector<Class> classes_;  // children before parents; the last joins all components
  std::vector<int32_t> class_of_step_;
  std::vector<Priced> priced_;
  std::vector<int32_t> labels_;
};

}  // namespace shardwright
