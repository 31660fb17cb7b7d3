#include "intraop/elimination.h"

#include <algorithm>
#include <utility>

#include "intraop/elimination_run.h"
#include "intraop/min_plus.h"

namespace shardwright {
namespace {

constexpr size_t kWorkBetweenChecks = 20'000'000;

}  // namespace

bool Elimination::Run::forward() {
  total_ = plan_.problem_.offset();
  messages_.resize(plan_.steps_.size());
  step_names_.resize(plan_.steps_.size());
  least_.resize(plan_.steps_.size());
  for (size_t s = 0; s < plan_.steps_.size(); ++s) {
    if (!sendMessage(s)) return false;
  }
  return true;
}

void Elimination::Run::choose(size_t s, const std::vector<Factor>& factors,
                              std::vector<int32_t>& labels) const {
  const Step& step = plan_.steps_[s];
  std::vector<const double*> rows;
  rows.reserve(factors.size());
  for (const Factor& factor : factors) {
    const double* row = factor.costs;
    for (size_t i = 0; i < step.scope.size(); ++i) {
      row +=
          factor.scope_strides[i] * static_cast<size_t>(labels[static_cast<size_t>(step.scope[i])]);
    }
    rows.push_back(row);
  }
  const std::vector<double>& unary = unaryOf(step);
  double best = kInfinity;
  for (size_t a = 0; a < unary.size(); ++a) {
    double cost = unary[a];
    for (size_t f = 0; f < factors.size(); ++f) cost += rows[f][a * factors[f].own_stride];
    if (cost < best) {
      best = cost;
      labels[static_cast<size_t>(step.variable)] = static_cast<int32_t>(a);
    }
  }
}

std::vector<int32_t> Elimination::Run::backtrack() const {
  std::vector<int32_t> labels(plan_.steps_.size(), 0);
  for (size_t s = plan_.steps_.size(); s-- > 0;) choose(s, factorsOf(s), labels);
  return labels;
}

EliminationTables Elimination::Run::takeTables() {
  EliminationTables tables;
  tables.optimum = total_;
  if (total_ != kInfinity) tables.labels = backtrack();
  for (const MessagePtr& message : messages_) tables.costs.emplace_back(message, &message->costs);
  tables.least = std::move(least_);
  return tables;
}

size_t Elimination::Run::offsetOf(const Factor& factor, const std::vector<size_t>& digits) {
  size_t offset = 0;
  for (size_t i = 0; i + 1 < digits.size(); ++i) offset += factor.scope_strides[i] * digits[i];
  return offset;
}

void Elimination::Run::advance(const Step& step, std::vector<size_t>& digits) const {
  for (size_t i = digits.size() - 1; i-- > 0;) {
    if (++digits[i] < numValues(step.scope[i])) return;
    digits[i] = 0;
  }
}

std::vector<Elimination::Run::Factor> Elimination::Run::factorsOf(size_t s) const {
  const Step& step = plan_.steps_[s];
  std::vector<Factor> factors;
  factors.reserve(step.edges.size() + step.children.size());
  const auto place = [&](int32_t v) {
    return static_cast<size_t>(std::find(step.scope.begin(), step.scope.end(), v) -
                               step.scope.begin());
  };
  for (int32_t e : step.edges) {
    const ReducedEdge& edge = plan_.problem_.edges()[static_cast<size_t>(e)];
    const bool u_goes = edge.u == step.variable;
    const Matrix& table = plan_.problem_.table(u_goes ? edge.table : edge.transposed_table);
    Factor factor{table.costs.data(), static_cast<size_t>(table.num_cols),
                  std::vector<size_t>(step.scope.size(), 0)};
    factor.scope_strides[place(u_goes ? edge.v : edge.u)] = 1;
    factors.push_back(std::move(factor));
  }
  for (int32_t child : step.children) {
    const Step& sender = plan_.steps_[static_cast<size_t>(child)];
    Factor factor{messages_[static_cast<size_t>(child)]->costs.data(), 0,
                  std::vector<size_t>(step.scope.size(), 0)};
    size_t stride = 1;
    for (size_t i = sender.scope.size(); i-- > 0;) {
      const int32_t y = sender.scope[i];
      if (y == step.variable) {
        factor.own_stride = stride;
      } else {
        factor.scope_strides[place(y)] = stride;
      }
      stride *= numValues(y);
    }
    factors.push_back(std::move(factor));
  }
  return factors;
}

// Everything a message depends on, named by content.
std::vector<int32_t> Elimination::Run::nameOf(size_t s) {
  const Step& step = plan_.steps_[s];
  const auto local = [&](int32_t v) {
    if (v == step.variable) return -1;
    return static_cast<int32_t>(std::find(step.scope.begin(), step.scope.end(), v) -
                                step.scope.begin());
  };
  // Children keep their order: what flows back is handed out in that order.
  std::vector<int32_t> name{
      unary_ids_.emplace(unaryOf(step), static_cast<int32_t>(unary_ids_.size())).first->second};
  for (int32_t y : step.scope) name.push_back(static_cast<int32_t>(numValues(y)));
  std::vector<std::pair<int32_t, int32_t>> edges;
  for (int32_t e : step.edges) {
    const ReducedEdge& edge = plan_.problem_.edges()[static_cast<size_t>(e)];
    const bool u_goes = edge.u == step.variable;
    edges.emplace_back(local(u_goes ? edge.v : edge.u),
                       u_goes ? edge.table : edge.transposed_table);
  }
  std::sort(edges.begin(), edges.end());
  for (const auto& [other, table] : edges) {
    name.insert(name.end(), {-2, other, table});
  }
  for (int32_t child : step.children) {
    name.insert(name.end(), {-3, messages_[static_cast<size_t>(child)]->id});
    for (int32_t y : plan_.steps_[static_cast<size_t>(child)].scope) name.push_back(local(y));
  }
  return name;
}

bool Elimination::Run::sendMessage(size_t s) {
  std::vector<int32_t> name = nameOf(s);
  if (const auto it = message_of_name_.find(name); it != message_of_name_.end()) {
    messages_[s] = it->second.message;
    step_names_[s] = it->second.name;
    least_[s] = it->second.least;
    total_ += it->second.least;
    return true;
  }
  std::optional<std::vector<double>> costs = eliminate(s);
  if (!costs) return false;
  double least = min_plus::least(costs->data(), costs->size());
  if (least == kInfinity) {
    total_ = kInfinity;
    least = 0.0;
  } else {
    for (double& cost : *costs) cost -= least;
    total_ += least;
  }
  messages_[s] = internMessage(std::move(*costs));
  least_[s] = least;
  step_names_[s] = static_cast<int32_t>(message_of_name_.size());
  message_of_name_.emplace(std::move(name), Sent{messages_[s], least, step_names_[s]});
  return true;
}

Elimination::Run::MessagePtr Elimination::Run::internMessage(std::vector<double> costs) {
  const uint64_t hash = hashBytes(costs.data(), costs.size() * sizeof(double), 3);
  const auto [first, last] = message_of_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second->costs == costs) return it->second;
  }
  auto message = std::make_shared<Message>();
  message->costs = std::move(costs);
  message->id = static_cast<int32_t>(message_of_hash_.size());
  message_of_hash_.emplace(hash, message);
  return message;
}

// Minimum over the step's variable, for every assignment of its scope.
std::optional<std::vector<double>> Elimination::Run::eliminate(size_t s) const {
  const Step& step = plan_.steps_[s];
  const std::vector<Factor> factors = factorsOf(s);
  const std::vector<double>& unary = unaryOf(step);
  const size_t depth = step.scope.size();
  if (depth == 0) {
    double least = kInfinity;
    for (size_t a = 0; a < unary.size(); ++a) {
      double cost = unary[a];
      for (const Factor& factor : factors) cost += factor.costs[a * factor.own_stride];
      least = std::min(least, cost);
    }
    return std::vector<double>{least};
  }
  const size_t row_length = numValues(step.scope.back());
  std::vector<double> out(static_cast<size_t>(step.num_entries), kInfinity);
  std::vector<const Factor*> along_row;
  std::vector<const Factor*> across;
  for (const Factor& factor : factors) {
    (factor.scope_strides.back() ? along_row : across).push_back(&factor);
  }
  std::vector<size_t> digits(depth, 0);
  std::vector<size_t> row_offset(along_row.size());
  std::vector<size_t> across_offset(across.size());
  std::vector<double> sum(row_length);
  size_t work_since_check = 0;
  for (size_t start = 0; start < out.size(); start += row_length) {
    for (size_t f = 0; f < along_row.size(); ++f) row_offset[f] = offsetOf(*along_row[f], digits);
    for (size_t f = 0; f < across.size(); ++f) across_offset[f] = offsetOf(*across[f], digits);
    double* out_row = out.data() + start;
    for (size_t a = 0; a < unary.size(); ++a) {
      double base = unary[a];
      for (size_t f = 0; f < across.size(); ++f) {
        base += across[f]->costs[across_offset[f] + a * across[f]->own_stride];
      }
      if (base == kInfinity) continue;
      const auto row = [&](size_t f) {
        return along_row[f]->costs + row_offset[f] + a * along_row[f]->own_stride;
      };
      if (along_row.size() == 1) {
        min_plus::relax(out_row, base, row(0), row_length);
      } else if (along_row.size() == 2) {
        min_plus::relaxSum(out_row, base, row(0), row(1), row_length);
      } else {
        min_plus::assign(sum.data(), base, row(0), row_length);
        for (size_t f = 1; f + 1 < along_row.size(); ++f) {
          min_plus::add(sum.data(), row(f), row_length);
        }
        min_plus::relaxSum(out_row, 0.0, sum.data(), row(along_row.size() - 1), row_length);
      }
    }
    work_since_check += row_length * unary.size();
    if (work_since_check > kWorkBetweenChecks) {
      work_since_check = 0;
      if (stop_ && stop_()) return std::nullopt;
    }
    advance(step, digits);
  }
  return out;
}

std::optional<EliminationResult> Elimination::solve(const UnaryCosts& unary,
                                                    const std::function<bool()>& stop) const {
  Run run(*this, unary, stop);
  if (!run.forward()) return std::nullopt;
  EliminationResult result;
  result.optimum = run.total();
  if (result.optimum != kInfinity) result.labels = run.backtrack();
  return result;
}

std::optional<EliminationTables> Elimination::tables(const UnaryCosts& unary,
                                                     const std::function<bool()>& stop) const {
  Run run(*this, unary, stop);
  if (!run.forward()) return std::nullopt;
  return run.takeTables();
}

std::optional<MarginalResult> Elimination::minMarginals(const UnaryCosts& unary,
                                                        const std::function<bool()>& stop) const {
  Run run(*this, unary, stop);
  if (!run.forward()) return std::nullopt;
  MarginalResult result;
  result.optimum = run.total();
  if (result.optimum == kInfinity) return result;
  std::optional<UnaryCosts> marginals = run.marginals();
  if (!marginals) return std::nullopt;
  result.costs = std::move(*marginals);
  return result;
}

}  // namespace shardwright
