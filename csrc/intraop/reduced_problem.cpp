#include "intraop/reduced_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shardwright {
namespace {

double largestFinite(const std::vector<double>& costs) {
  double largest = 0.0;
  for (double cost : costs) {
    if (cost != kInfinity) largest = std::max(largest, std::abs(cost));
  }
  return largest;
}

}  // namespace

ReducedProblem::ReducedProblem(Reduction& reduction, const MemoryLayout& layout)
    : fixed_strategies_(reduction.fixedStrategies()), offset_(reduction.offset()) {
  // Program order (least member node) keeps neighbours close for message passing.
  std::vector<std::pair<int32_t, int32_t>> order;
  for (size_t v = 0; v < reduction.variables().size(); ++v) {
    const Variable& variable = reduction.variables()[v];
    if (!variable.alive) continue;
    int32_t first = variable.members.front().node;
    for (const Member& member : variable.members) first = std::min(first, member.node);
    order.emplace_back(first, static_cast<int32_t>(v));
  }
  std::sort(order.begin(), order.end());

  const MemoryState memory = measureMemory(reduction, layout);
  layout_rows_ = bindingRows(memory);
  const std::vector<int32_t>& rows = layout_rows_;
  for (int32_t row : rows) slack_bytes_.push_back(memory.slack_bytes[static_cast<size_t>(row)]);
  const auto row_from = [&](int32_t row) {
    return static_cast<int32_t>(std::lower_bound(rows.begin(), rows.end(), row) - rows.begin());
  };
  std::vector<int32_t> position(reduction.variables().size(), -1);
  for (const auto& [first, v] : order) {
    position[static_cast<size_t>(v)] = static_cast<int32_t>(variables_.size());
    ReducedVariable variable;
    variable.costs = reduction.variable(v).costs;
    variable.reduction_variable = v;
    variable.members = reduction.variable(v).members;
    variable.joints = reduction.variable(v).joints;
    for (const MemorySegment& segment : memory.segments[static_cast<size_t>(v)]) {
      MemorySegment kept{row_from(segment.row_begin), row_from(segment.row_end),
                         segment.excess_bytes};
      if (kept.row_begin >= kept.row_end) continue;
      if (!variable.memory.empty() && variable.memory.back().row_end == kept.row_begin &&
          variable.memory.back().excess_bytes == kept.excess_bytes) {
        variable.memory.back().row_end = kept.row_end;
      } else {
        variable.memory.push_back(std::move(kept));
      }
    }
    variables_.push_back(std::move(variable));
  }

  std::vector<Matrix> tables;
  std::vector<int32_t> packed(reduction.pool().numTables(), -1);
  const auto pack = [&](TableRef ref) {
    if (static_cast<size_t>(ref) >= packed.size()) packed.resize(static_cast<size_t>(ref) + 1, -1);
    int32_t& id = packed[static_cast<size_t>(ref)];
    if (id < 0) {
      id = static_cast<int32_t>(tables.size());
      tables.push_back(reduction.pool().table(ref));
    }
    return id;
  };
  for (size_t e = 0; e < reduction.edges().size(); ++e) {
    const ReductionEdge& edge = reduction.edges()[e];
    if (!edge.alive) continue;
    int32_t u = position[static_cast<size_t>(edge.u)];
    int32_t v = position[static_cast<size_t>(edge.v)];
    TableRef table = edge.table;
    TableRef transposed = reduction.pool().transposed(table);
    if (u > v) {
      std::swap(u, v);
      std::swap(table, transposed);
    }
    edges_.push_back({u, v, pack(table), pack(transposed)});
  }
  std::sort(edges_.begin(), edges_.end(), [](const ReducedEdge& a, const ReducedEdge& b) {
    return a.u != b.u ? a.u < b.u : a.v < b.v;
  });
  double magnitude = std::abs(offset_);
  std::vector<double> table_magnitude;
  tables_ = std::make_shared<const std::vector<Matrix>>(std::move(tables));
  for (const Matrix& table : *tables_) table_magnitude.push_back(largestFinite(table.costs));
  linkEdges();
  for (const ReducedEdge& edge : edges_) {
    magnitude += table_magnitude[static_cast<size_t>(edge.table)];
  }
  for (const ReducedVariable& variable : variables_) magnitude += largestFinite(variable.costs);
  // Room for multipliers and messages: as much again as the costs themselves, twice.
  const int bits = 51 - static_cast<int>(std::ceil(std::log2(std::max(2.0, magnitude))));
  quantum_ = std::ldexp(1.0, -std::clamp(bits, 0, 20));
}

void ReducedProblem::linkEdges() {
  for (size_t e = 0; e < edges_.size(); ++e) {
    const auto id = static_cast<int32_t>(e);
    variables_[static_cast<size_t>(edges_[e].u)].edges_to_later.push_back(id);
    variables_[static_cast<size_t>(edges_[e].v)].edges_to_earlier.push_back(id);
  }
}

ReducedProblem::ReducedProblem(const ReducedProblem& whole, std::span<const int32_t> labels,
                               const std::vector<int32_t>& free)
    : tables_(whole.tables_), quantum_(whole.quantum_) {
  std::vector<int32_t> position(whole.variables_.size(), -1);
  for (size_t i = 0; i < free.size(); ++i) {
    position[static_cast<size_t>(free[i])] = static_cast<int32_t>(i);
  }
  // What the fixed variables hold is no longer available.
  std::vector<int64_t> slack = whole.overloadOf(labels);
  for (int64_t& bytes : slack) bytes = -bytes;
  std::vector<int64_t> most(slack.size() + 1, 0);
  std::vector<int64_t> held(slack.size() + 1, 0);
  for (int32_t v : free) {
    const int32_t label = labels[static_cast<size_t>(v)];
    for (const MemorySegment& segment : whole.variables_[static_cast<size_t>(v)].memory) {
      const auto begin = static_cast<size_t>(segment.row_begin);
      const auto end = static_cast<size_t>(segment.row_end);
      const int64_t now = segment.excess_bytes[static_cast<size_t>(label)];
      held[begin] += now;
      held[end] -= now;
      most[begin] += segment.maxExcess();
      most[end] -= segment.maxExcess();
    }
  }
  std::vector<int32_t> rows;  // those the free variables could overload
  int64_t held_here = 0;
  int64_t most_here = 0;
  for (size_t row = 0; row < slack.size(); ++row) {
    held_here += held[row];
    most_here += most[row];
    slack[row] += held_here;
    if (most_here <= slack[row]) continue;
    rows.push_back(static_cast<int32_t>(row));
    slack_bytes_.push_back(slack[row]);
    layout_rows_.push_back(whole.layout_rows_[row]);
  }
  const auto row_from = [&](int32_t row) {
    return static_cast<int32_t>(std::lower_bound(rows.begin(), rows.end(), row) - rows.begin());
  };
  for (int32_t v : free) {
    const ReducedVariable& source = whole.variables_[static_cast<size_t>(v)];
    ReducedVariable variable;
    variable.costs = source.costs;
    for (const MemorySegment& segment : source.memory) {
      MemorySegment kept{row_from(segment.row_begin), row_from(segment.row_end),
                         segment.excess_bytes};
      if (kept.row_begin < kept.row_end) variable.memory.push_back(std::move(kept));
    }
    const int32_t here = position[static_cast<size_t>(v)];
    for (int32_t e : source.edges_to_later) {
      const ReducedEdge& edge = whole.edges_[static_cast<size_t>(e)];
      const int32_t other = position[static_cast<size_t>(edge.v)];
      if (other >= 0) {
        edges_.push_back({here, other, edge.table, edge.transposed_table});
        continue;
      }
      const double* row =
          whole.table(edge.transposed_table).row(labels[static_cast<size_t>(edge.v)]);
      for (size_t a = 0; a < variable.costs.size(); ++a) variable.costs[a] += row[a];
    }
    for (int32_t e : source.edges_to_earlier) {
      const ReducedEdge& edge = whole.edges_[static_cast<size_t>(e)];
      if (position[static_cast<size_t>(edge.u)] >= 0) continue;
      const double* row = whole.table(edge.table).row(labels[static_cast<size_t>(edge.u)]);
      for (size_t a = 0; a < variable.costs.size(); ++a) variable.costs[a] += row[a];
    }
    variables_.push_back(std::move(variable));
  }
  linkEdges();
}

double ReducedProblem::numEntries() const {
  double entries = 0.0;
  for (const ReducedEdge& edge : edges_) {
    entries += static_cast<double>(table(edge.table).costs.size());
  }
  return entries;
}

double ReducedProblem::costOf(std::span<const int32_t> labels) const {
  double cost = offset_;
  for (size_t v = 0; v < variables_.size(); ++v) {
    cost += variables_[v].costs[static_cast<size_t>(labels[v])];
  }
  for (const ReducedEdge& edge : edges_) {
    cost += table(edge.table)
                .at(labels[static_cast<size_t>(edge.u)], labels[static_cast<size_t>(edge.v)]);
  }
  return cost;
}

std::vector<int64_t> ReducedProblem::overloadOf(std::span<const int32_t> labels) const {
  std::vector<int64_t> overload(slack_bytes_.size() + 1, 0);
  for (size_t v = 0; v < variables_.size(); ++v) {
    for (const MemorySegment& segment : variables_[v].memory) {
      const int64_t bytes = segment.excess_bytes[static_cast<size_t>(labels[v])];
      overload[static_cast<size_t>(segment.row_begin)] += bytes;
      overload[static_cast<size_t>(segment.row_end)] -= bytes;
    }
  }
  int64_t load = 0;
  for (size_t row = 0; row < slack_bytes_.size(); ++row) {
    load += overload[row];
    overload[row] = load - slack_bytes_[row];
  }
  overload.pop_back();
  return overload;
}

std::vector<int32_t> ReducedProblem::expand(const TablePool& pool,
                                            std::span<const int32_t> labels) const {
  std::vector<int32_t> choice = fixed_strategies_;
  for (size_t v = 0; v < variables_.size(); ++v) {
    for (const Member& member : variables_[v].members) {
      choice[static_cast<size_t>(member.node)] =
          pool.list(member.strategies)[static_cast<size_t>(labels[v])];
    }
  }
  return choice;
}

}  // namespace shardwright
