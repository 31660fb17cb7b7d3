// Exact min-plus bucket elimination over a ReducedProblem without its memory rows. Tables are
// shared by content, so repeated layers of a model are computed once, boundary included, hence
// exactly. Source: Dechter, "Bucket elimination", Artificial Intelligence 113 (1999).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "intraop/reduced_problem.h"

namespace shardwright {

// Costs per variable and value that stand in for ReducedVariable::costs (e.g. with multipliers).
using UnaryCosts = std::vector<std::vector<double>>;

struct EliminationLimits {
  double max_work = 4e9;   // table entries visited
  double max_bytes = 2e9;  // of the tables kept
};

struct EliminationResult {
  double optimum = kInfinity;  // offset included; infinity when every choice is forbidden
  std::vector<int32_t> labels;
};

struct EliminationTables {
  double optimum = kInfinity;  // offset included; infinity when every choice is forbidden
  // Per step: least cost of everything eliminated into it, itself included, for each assignment of
  // its scope (first variable slowest), less the least entry of its table and of those before it.
  std::vector<std::shared_ptr<const std::vector<double>>> costs;
  std::vector<double> least;    // per step: the least entry of its own table, subtracted from it
  std::vector<int32_t> labels;  // a choice that attains the optimum
};

struct MarginalResult {
  double optimum = kInfinity;  // offset included
  UnaryCosts costs;  // least cost per variable and value, offset included; empty when infeasible
};

class JointCosts;

class Elimination {
 public:
  // Finds a greedy order (least next table first) and sizes it; costs nothing like a solve. The
  // variables in `kept` go last, in that order. problem must outlive this.
  explicit Elimination(const ReducedProblem& problem, const EliminationLimits& limits = {},
                       std::vector<int32_t> kept = {});

  // Whether the order stays within the limits ("too wide" otherwise; do not call solve then).
  bool fits() const { return fits_; }
  // Entries visited by one solve, equal steps counted once.
  double work() const { return work_; }
  // The same with every step counted; what flows back in minMarginals is rarely shared.
  double unsharedWork() const { return unshared_work_; }
  // Most variables in one table.
  int32_t width() const { return width_; }

  // One variable's turn: what it is summed with and what it leaves a table over.
  struct Step {
    int32_t variable = 0;
    std::vector<int32_t> scope;     // neighbours left when it goes, in elimination order
    double num_entries = 1.0;       // product of the scope's domain sizes
    std::vector<int32_t> edges;     // original edges in its bucket
    std::vector<int32_t> children;  // earlier steps whose tables land in its bucket
  };
  const std::vector<Step>& steps() const { return steps_; }

  // Least cost under the given unary costs and a choice attaining it; nothing when stop() said so.
  std::optional<EliminationResult> solve(const UnaryCosts& unary,
                                         const std::function<bool()>& stop = {}) const;

  // The tables of one solve, kept; nothing when stop() said so. Equal tables are one.
  std::optional<EliminationTables> tables(const UnaryCosts& unary,
                                          const std::function<bool()>& stop = {}) const;

  // Least cost for each value of each variable (infinity when the value is impossible); nothing
  // when stop() said so. Costs two to three solves.
  std::optional<MarginalResult> minMarginals(const UnaryCosts& unary,
                                             const std::function<bool()>& stop = {}) const;

  // Least cost for each assignment of the kept variables. This and the problem must outlive it.
  JointCosts jointCosts(UnaryCosts unary) const;

 private:
  friend class JointCosts;
  class Run;

  void findOrder(double max_log_entries);
  void sizeSteps(const EliminationLimits& limits);

  const ReducedProblem& problem_;
  std::vector<int32_t> kept_;
  std::vector<Step> steps_;
  std::vector<int32_t> position_;  // variable -> step
  bool fits_ = true;
  double work_ = 0.0;
  double unshared_work_ = 0.0;
  int32_t width_ = 0;
};

// What Elimination::jointCosts gives: costs at once, and a choice for any of them when asked.
class JointCosts {
 public:
  ~JointCosts();
  JointCosts(JointCosts&&) noexcept;
  JointCosts& operator=(JointCosts&&) noexcept;

  // Offset included; first kept variable slowest; infinity where there is no choice.
  const std::vector<double>& costs() const { return costs_; }
  // A choice with these values of the kept variables that attains their cost, which is finite.
  std::vector<int32_t> labels(const std::vector<int32_t>& kept_values) const;

 private:
  friend class Elimination;
  struct State;
  explicit JointCosts(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
  std::vector<double> costs_;
};

}  // namespace shardwright
