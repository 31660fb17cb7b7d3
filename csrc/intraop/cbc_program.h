// The 0-1 program of a ReducedProblem and one CBC model of it; used by the worker process only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "intraop/reduced_problem.h"

namespace shardwright {

struct CbcOutcome {
  bool optimal = false;
  std::optional<double> bound;  // unscaled, offset included
  std::vector<int32_t> labels;  // best integer solution, empty when none
  double objective = 0.0;       // CBC's value for it, unscaled
};

// Source of the form: local polytope of a pairwise problem (one-hot columns, edge columns with
// marginal rows), as in contest baselines; memory rows over one-hot columns.
class CbcProgram {
 public:
  // Objective = (cost - constant()) * scale.
  CbcProgram(const ReducedProblem& problem, double scale);

  int32_t numColumns() const { return static_cast<int32_t>(objective_.size()); }
  // Of every choice: the offset and each variable's least cost.
  double constant() const { return constant_; }
  // What every choice pays beyond it is a multiple of this.
  double unit() const { return unit_; }
  size_t numNonzeros() const { return row_columns_.size(); }

  void addMemoryRow(int32_t row);
  // Forbids the exact set of values that overload a row.
  void addCover(int32_t row, const std::vector<int32_t>& labels);

  CbcOutcome solve(double time_limit_s, const std::vector<int32_t>& start) const;

 private:
  void beginRow(double lower, double upper);
  void addEntry(int32_t column, double value);
  int32_t columnOf(int32_t variable, int32_t value) const {
    return first_column_[static_cast<size_t>(variable)] + value;
  }
  std::vector<double> columnValues(const std::vector<int32_t>& labels) const;

  struct EdgeColumn {
    int32_t edge, row, col;
  };

  const ReducedProblem& problem_;
  double scale_;
  double constant_ = 0.0;
  double unit_ = 1.0;
  std::vector<int32_t> first_column_;
  std::vector<double> objective_;
  int32_t num_binary_ = 0;
  std::vector<EdgeColumn> edge_columns_;
  std::vector<int32_t> row_start_;
  std::vector<int32_t> row_columns_;
  std::vector<double> row_values_;
  std::vector<double> row_lower_;
  std::vector<double> row_upper_;
};

}  // namespace shardwright
