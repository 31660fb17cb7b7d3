// One run of the solver: what is reduced, known and left to do. Each phase narrows the distance
// between the incumbent and the bound; solve() is its only user.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intraop/certificate.h"
#include "intraop/elimination.h"
#include "intraop/memory_rows.h"
#include "intraop/message_memory.h"
#include "intraop/reduced_problem.h"
#include "intraop/reduction.h"
#include "intraop/solve.h"
#include "intraop/work_meter.h"

namespace shardwright {

class Search {
 public:
  Search(const Problem& problem, const SolveOptions& options);

  // Runs all phases; the claim is not certified yet.
  Claim run();
  const std::vector<PhaseTime>& phases() const { return phases_; }
  double seconds() const;

 private:
  // Adds the wall time of a scope to a named phase; phases inside it count for themselves.
  class Phase {
   public:
    Phase(Search& search, std::string name);
    ~Phase();
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    void charge();

    Search& search_;
    std::string outer_;
  };

  // What is known (search_state.cpp).
  // By the clock; inside another search by the meter, or when that search is out of time.
  bool outOfTime() const;
  // Also the heartbeat: lets on_progress speak.
  bool interrupted();
  bool stopped();
  double secondsLeft() const;
  // What is left of the time limit in nominal seconds; decisions depend on it, stopping on the
  // clock.
  double nominalLeft() const;
  bool closed() const;
  bool gapAtMost(double relative_gap) const;
  // The incumbent's cost in the reduction's units, or infinity.
  double cutoff() const;
  // The most that a choice cheaper than the incumbent can cost, in the reduction's units.
  double improvingCutoff() const;
  // From the bound to the incumbent, in the problem's units; infinity without one of them.
  double distance() const;

  // Records a choice when it is valid and better than the incumbent.
  bool consider(const ReducedProblem& reduced, std::span<const int32_t> labels);
  void considerChoice(std::vector<int32_t> choice);
  // Records a bound on what the reduction still holds, in its (shifted) units. Choices fixed away
  // cost more than the incumbent, so it also bounds all of them once cut to the incumbent's cost.
  void raiseBound(double bound);
  // Concludes from a dual bound above every choice of interest: there is no choice at all, or none
  // better than the incumbent.
  void closeByDualBound();
  // The incumbent in this round's reduced problem, or a choice near it where presolve has removed
  // some of its values; valid, but maybe dearer.
  const std::optional<std::vector<int32_t>>& incumbentLabels(const ReducedProblem& reduced);
  // The values that agree with the incumbent on most nodes; need not be a valid choice.
  std::vector<int32_t> nearestLabels(const ReducedProblem& reduced) const;
  // A choice in the values of a problem made from the reduction, if it is representable there.
  static std::optional<std::vector<int32_t>> labelsOf(const std::vector<int32_t>& choice,
                                                      const ReducedProblem& reduced,
                                                      const Reduction& reduction);
  double numValuesLeft() const;
  // Multipliers by layout row, and in the rows of a problem.
  using MultiplierMap = std::map<int32_t, double>;
  static MultiplierMap multipliersByRow(const ReducedProblem& reduced,
                                        const std::vector<double>& multipliers);
  static std::vector<double> multipliersOf(const ReducedProblem& reduced, const MultiplierMap& map);
  void report();
  Claim claim() const;

  // Phases of the driver (search.cpp). Those that return bool say whether the search is over.
  bool reduce();
  bool enumerate(const ReducedProblem& reduced);
  bool programFits(const ReducedProblem& reduced) const;
  bool finishWithIntegerProgram(const ReducedProblem& reduced);

  // Phases that raise the bound (search_bounds.cpp).
  bool solveWithoutRows(const ReducedProblem& reduced, const Elimination& elimination);
  bool boundByLagrangian(const ReducedProblem& reduced, const Elimination& elimination);
  bool boundByMessages(const ReducedProblem& reduced, double time_limit_s);
  bool probeNearBound(const ReducedProblem& reduced, const MarginalResult& marginals);
  double messageSeconds(const Elimination& elimination) const;
  // Makes one variable of each pair that the last messages could not bound well apart. Returns
  // whether there were any.
  bool joinVariables(const ReducedProblem& reduced);
  // More than any choice can cost, in the reduction's units.
  double costCeiling(const ReducedProblem& reduced) const;
  // Removes values that no choice as cheap as the incumbent takes; marginals[v][a] bounds the cost
  // of every choice with value a at v. They must be those of the reduction's present values.
  void fixByMarginals(const ReducedProblem& reduced, const UnaryCosts& marginals);
  // Share of the values that fixByMarginals would remove.
  double fixableShare(const UnaryCosts& marginals) const;

  // Phases that look for a better incumbent (search_primal.cpp).
  // Makes the choice fit, improves it and records it; starts and combines with the incumbent.
  void searchFrom(const ReducedProblem& reduced, const std::vector<int32_t>& labels);
  // Re-solves blocks around the incumbent for some seconds.
  void improveByNeighbourhoods(const ReducedProblem& reduced, double time_limit_s);
  double neighbourhoodSeconds() const;
  // Makes a choice in the values of some of the reduction's choices fit, quickly, and records it.
  void considerRepaired(const ReducedProblem& part, const Reduction& narrow,
                        const std::vector<int32_t>& labels);

  // Phases that make use of repeated layers (search_repeats.cpp).
  // Solves once for choices in which the copies of each variable decide alike, memory priced by the
  // multipliers at hand: deep models have good choices of this kind, and they are few.
  void searchTied(const ReducedProblem& reduced);
  // Solves exactly on the values that the copies of each variable have in the incumbent, so that
  // what is good in one of the repeated layers reaches the others.
  void searchRepeats(const ReducedProblem& reduced);

  // Phases that close the gap by Pareto elimination (search_pareto.cpp).
  struct Band;
  // What came of searching the choices within a band.
  struct BandOutcome {
    bool fits = false;                          // the values were few enough to be searched
    std::vector<std::vector<int32_t>> choices;  // cheapest ones under some multipliers
  };
  // Around the given multipliers, on all values; true when the search is over.
  bool searchByPareto(const ReducedProblem& reduced, const Elimination& elimination,
                      const std::vector<double>& multipliers);
  // On the values that choices near the bound of messages have. Returns whether there is a guess of
  // multipliers to go on from.
  bool searchNearBound(const ReducedProblem& reduced, const MarginalResult& marginals);
  bool searchBand(Band& band);
  bool narrowBand(const Band& band, double limit);
  BandOutcome searchValues(const Reduction& whole, const ReducedProblem& problem,
                           std::vector<std::vector<int32_t>> values,
                           const std::vector<double>& multipliers, double ceiling);
  int32_t searchTracked(Band& band, const std::vector<int32_t>& rows, double limit);

  const Problem& problem_;
  const SolveOptions& options_;
  std::chrono::steady_clock::time_point start_;
  Reduction reduction_;
  MemoryLayout layout_;
  std::vector<int32_t> incumbent_;
  int64_t incumbent_cost_ = 0;
  std::optional<int64_t> lower_bound_;
  InfeasibilityProof proof_ = InfeasibilityProof::kNone;
  const Search* parent_ = nullptr;  // the search that this one is a part of
  bool has_tied_ = false;           // searchTied was tried
  bool has_fixed_ = false;          // values were removed because of the incumbent's cost
  WorkMeter meter_;
  double primal_seconds_ = 0.0;        // nominal, part of meter_
  double primal_share_ = 0.5;          // of the meter that choices read off may take
  MultiplierMap multipliers_;          // of the last bound; carried from round to round
  MultiplierMap guessed_multipliers_;  // the best ones for choices near the bound; maybe empty
  MessageMemory message_memory_;       // the same for messages
  double message_bound_ = -kInfinity;  // best so far
  double next_probe_seconds_ = 0.15;   // nominal: when probeNearBound looks again
  double near_width_ = kInfinity;      // width of the last band that was narrow enough
  std::vector<std::pair<int32_t, int32_t>> joins_;  // proposed by the last messages
  int round_ = 0;
  std::optional<std::vector<int32_t>> incumbent_labels_;  // see incumbentLabels
  int labels_round_ = -1;
  int64_t labels_cost_ = 0;
  std::vector<PhaseTime> phases_;
  std::string phase_name_;
  std::chrono::steady_clock::time_point phase_start_;
  std::chrono::steady_clock::time_point last_report_;
};

}  // namespace shardwright
