#include "intraop/cbc_program.h"

#include <Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

namespace shardwright {
namespace {

struct CbcDeleter {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};

// Moves row and column minima of a table into the ends' costs; what stays is >= 0 and mostly 0.
struct NormalisedTable {
  Matrix rest;
  std::vector<double> row_part;
  std::vector<double> col_part;
  bool is_zero = true;
};

NormalisedTable normalise(const Matrix& table) {
  NormalisedTable result{table, std::vector<double>(static_cast<size_t>(table.num_rows), 0.0),
                         std::vector<double>(static_cast<size_t>(table.num_cols), kInfinity), true};
  for (int32_t r = 0; r < table.num_rows; ++r) {
    double* row =
        result.rest.costs.data() + static_cast<size_t>(r) * static_cast<size_t>(table.num_cols);
    const double least = *std::min_element(row, row + table.num_cols);
    if (least == kInfinity) continue;
    result.row_part[static_cast<size_t>(r)] = least;
    for (int32_t c = 0; c < table.num_cols; ++c) {
      row[c] -= least;
      double& col = result.col_part[static_cast<size_t>(c)];
      col = std::min(col, row[c]);
    }
  }
  for (double& part : result.col_part) {
    if (part == kInfinity) part = 0.0;
  }
  for (size_t i = 0; i < result.rest.costs.size(); ++i) {
    double& entry = result.rest.costs[i];
    entry -= result.col_part[i % static_cast<size_t>(table.num_cols)];
    if (entry != 0.0) result.is_zero = false;
  }
  return result;
}

}  // namespace

CbcProgram::CbcProgram(const ReducedProblem& problem, double scale)
    : problem_(problem), scale_(scale), constant_(problem.offset()) {
  for (const ReducedVariable& variable : problem.variables()) {
    first_column_.push_back(static_cast<int32_t>(objective_.size()));
    objective_.insert(objective_.end(), variable.costs.begin(), variable.costs.end());
  }
  num_binary_ = static_cast<int32_t>(objective_.size());
  for (int32_t v = 0; v < problem.numVariables(); ++v) {
    beginRow(1.0, 1.0);
    const int32_t n = problem.variables()[static_cast<size_t>(v)].numValues();
    for (int32_t a = 0; a < n; ++a) addEntry(columnOf(v, a), 1.0);
  }
  for (size_t e = 0; e < problem.edges().size(); ++e) {
    const ReducedEdge& edge = problem.edges()[e];
    const NormalisedTable table = normalise(problem.table(edge.table));
    for (int32_t r = 0; r < table.rest.num_rows; ++r) {
      objective_[static_cast<size_t>(columnOf(edge.u, r))] +=
          table.row_part[static_cast<size_t>(r)];
    }
    for (int32_t c = 0; c < table.rest.num_cols; ++c) {
      objective_[static_cast<size_t>(columnOf(edge.v, c))] +=
          table.col_part[static_cast<size_t>(c)];
    }
    if (table.is_zero) continue;
    std::vector<std::vector<int32_t>> in_col(static_cast<size_t>(table.rest.num_cols));
    for (int32_t r = 0; r < table.rest.num_rows; ++r) {
      beginRow(0.0, 0.0);
      addEntry(columnOf(edge.u, r), -1.0);
      for (int32_t c = 0; c < table.rest.num_cols; ++c) {
        const double cost = table.rest.at(r, c);
        if (cost == kInfinity) continue;
        const auto column = static_cast<int32_t>(objective_.size());
        objective_.push_back(cost);
        edge_columns_.push_back({static_cast<int32_t>(e), r, c});
        in_col[static_cast<size_t>(c)].push_back(column);
        addEntry(column, 1.0);
      }
    }
    for (int32_t c = 0; c < table.rest.num_cols; ++c) {
      beginRow(0.0, 0.0);
      addEntry(columnOf(edge.v, c), -1.0);
      for (int32_t column : in_col[static_cast<size_t>(c)]) addEntry(column, 1.0);
    }
  }
  // What every choice pays anyway stays out of the library's floating point.
  for (int32_t v = 0; v < problem.numVariables(); ++v) {
    const auto first = objective_.begin() + columnOf(v, 0);
    const auto last = first + problem.variables()[static_cast<size_t>(v)].numValues();
    const double least = *std::min_element(first, last);
    if (std::abs(least) == kInfinity) continue;
    for (auto it = first; it != last; ++it) *it -= least;
    constant_ += least;
  }
  int64_t divisor = 0;
  for (double cost : objective_) {
    if (!(std::abs(cost) < 9e15)) continue;  // forbidden
    divisor = std::gcd(divisor, cost == std::floor(cost) ? static_cast<int64_t>(cost) : 1);
  }
  unit_ = std::max(1.0, static_cast<double>(divisor));
}

void CbcProgram::beginRow(double lower, double upper) {
  row_start_.push_back(static_cast<int32_t>(row_columns_.size()));
  row_lower_.push_back(lower);
  row_upper_.push_back(upper);
}

void CbcProgram::addEntry(int32_t column, double value) {
  row_columns_.push_back(column);
  row_values_.push_back(value);
}

void CbcProgram::addMemoryRow(int32_t row) {
  const int64_t slack = problem_.slackBytes()[static_cast<size_t>(row)];
  beginRow(-std::numeric_limits<double>::max(), slack > 0 ? 1.0 : 0.0);
  for (int32_t v = 0; v < problem_.numVariables(); ++v) {
    for (const MemorySegment& segment : problem_.variables()[static_cast<size_t>(v)].memory) {
      if (row < segment.row_begin || row >= segment.row_end) continue;
      for (size_t a = 0; a < segment.excess_bytes.size(); ++a) {
        const auto bytes = static_cast<double>(segment.excess_bytes[a]);
        if (bytes == 0.0) continue;
        addEntry(columnOf(v, static_cast<int32_t>(a)),
                 slack > 0 ? bytes / static_cast<double>(slack) : 1.0);
      }
    }
  }
}

void CbcProgram::addCover(int32_t row, const std::vector<int32_t>& labels) {
  std::vector<int32_t> columns;
  for (int32_t v = 0; v < problem_.numVariables(); ++v) {
    for (const MemorySegment& segment : problem_.variables()[static_cast<size_t>(v)].memory) {
      if (row < segment.row_begin || row >= segment.row_end) continue;
      const int32_t label = labels[static_cast<size_t>(v)];
      if (segment.excess_bytes[static_cast<size_t>(label)] > 0) {
        columns.push_back(columnOf(v, label));
      }
    }
  }
  beginRow(-std::numeric_limits<double>::max(), static_cast<double>(columns.size()) - 1.0);
  for (int32_t column : columns) addEntry(column, 1.0);
}

std::vector<double> CbcProgram::columnValues(const std::vector<int32_t>& labels) const {
  std::vector<double> values(objective_.size(), 0.0);
  for (int32_t v = 0; v < problem_.numVariables(); ++v) {
    values[static_cast<size_t>(columnOf(v, labels[static_cast<size_t>(v)]))] = 1.0;
  }
  for (size_t k = 0; k < edge_columns_.size(); ++k) {
    const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(edge_columns_[k].edge)];
    if (labels[static_cast<size_t>(edge.u)] == edge_columns_[k].row &&
        labels[static_cast<size_t>(edge.v)] == edge_columns_[k].col) {
      values[static_cast<size_t>(num_binary_) + k] = 1.0;
    }
  }
  return values;
}

CbcOutcome CbcProgram::solve(double time_limit_s, const std::vector<int32_t>& start) const {
  const int num_columns = numColumns();
  const auto num_rows = static_cast<int>(row_start_.size());
  // CBC takes columns; count, then place.
  std::vector<int> column_start(static_cast<size_t>(num_columns) + 1, 0);
  for (int32_t column : row_columns_) ++column_start[static_cast<size_t>(column) + 1];
  for (size_t c = 0; c < static_cast<size_t>(num_columns); ++c) {
    column_start[c + 1] += column_start[c];
  }
  std::vector<int> index(row_columns_.size());
  std::vector<double> value(row_columns_.size());
  std::vector<int> filled(column_start.begin(), column_start.end() - 1);
  for (size_t row = 0; row < row_start_.size(); ++row) {
    const size_t end = row + 1 < row_start_.size() ? static_cast<size_t>(row_start_[row + 1])
                                                   : row_columns_.size();
    for (auto i = static_cast<size_t>(row_start_[row]); i < end; ++i) {
      const auto slot = static_cast<size_t>(filled[static_cast<size_t>(row_columns_[i])]++);
      index[slot] = static_cast<int>(row);
      value[slot] = row_values_[i];
    }
  }
  std::vector<double> lower(static_cast<size_t>(num_columns), 0.0);
  std::vector<double> upper(static_cast<size_t>(num_columns), 1.0);
  std::vector<double> scaled(objective_);
  for (double& cost : scaled) cost *= scale_;

  const std::unique_ptr<Cbc_Model, CbcDeleter> model(Cbc_newModel());
  Cbc_loadProblem(model.get(), num_columns, num_rows, column_start.data(), index.data(),
                  value.data(), lower.data(), upper.data(), scaled.data(), row_lower_.data(),
                  row_upper_.data());
  for (int32_t c = 0; c < num_binary_; ++c) Cbc_setInteger(model.get(), c);
  Cbc_setLogLevel(model.get(), 0);
  Cbc_setParameter(model.get(), "log", "0");
  Cbc_setParameter(model.get(), "timeMode", "elapsed");
  Cbc_setMaximumSeconds(model.get(), time_limit_s);
  Cbc_setAllowableFractionGap(model.get(), 0.0);
  Cbc_setAllowableGap(model.get(), 0.9 * scale_);  // costs are integers
  if (!start.empty()) {
    const std::vector<double> values = columnValues(start);
    std::vector<int> columns(values.size());
    for (size_t c = 0; c < columns.size(); ++c) columns[c] = static_cast<int>(c);
    Cbc_setMIPStartI(model.get(), num_columns, columns.data(), values.data());
    // Above the known choice, so that a correct search always finds one at least as good.
    Cbc_setCutoff(model.get(), (problem_.costOf(start) - constant_) * scale_ + 0.5 * scale_ + 1e-6);
  }
  Cbc_solve(model.get());

  CbcOutcome outcome;
  outcome.optimal = Cbc_isProvenOptimal(model.get()) != 0;
  const double best_possible = Cbc_getBestPossibleObjValue(model.get());
  if (std::isfinite(best_possible) && std::abs(best_possible) < 1e40) {
    outcome.bound = best_possible / scale_ + constant_;
  }
  if (const double* solution = Cbc_bestSolution(model.get())) {
    outcome.objective = Cbc_getObjValue(model.get()) / scale_ + constant_;
    for (int32_t v = 0; v < problem_.numVariables(); ++v) {
      const double* values = solution + columnOf(v, 0);
      const int32_t n = problem_.variables()[static_cast<size_t>(v)].numValues();
      outcome.labels.push_back(static_cast<int32_t>(std::max_element(values, values + n) - values));
    }
  }
  return outcome;
}

}  // namespace shardwright
