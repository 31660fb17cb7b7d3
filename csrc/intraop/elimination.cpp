#include "intraop/elimination.h"

#include <algorithm>
#include <span>
#include <utility>

#include "intraop/elimination_run.h"
#include "intraop/min_plus.h"

namespace shardwright {
namespace {

constexpr size_t kWorkBetweenChecks = 20'000'000;
// Rows of more entries are not joined: one of every factor should stay in the first cache.
constexpr size_t kLongestRow = 1024;

}  // namespace

// The entries over a scope row by row, and where each factor's row begins. Neighbouring dims that
// every factor walks through in one stride are one.
class Elimination::Run::RowWalk {
 public:
  RowWalk(const std::vector<size_t>& sizes, const std::vector<Factor>& factors)
      : strides_(factors.size()), offsets_(factors.size(), 0) {
    for (size_t i = sizes.size(); i-- > 0;) {
      const bool is_joined = !sizes_.empty() && sizes_.back() * sizes[i] <= kLongestRow &&
                             std::ranges::all_of(factors, [&](const Factor& factor) {
                               const auto f = static_cast<size_t>(&factor - factors.data());
                               return factor.scope_strides[i] == strides_[f].back() * sizes_.back();
                             });
      if (is_joined) {
        sizes_.back() *= sizes[i];
        continue;
      }
      sizes_.push_back(sizes[i]);
      for (size_t f = 0; f < factors.size(); ++f) {
        strides_[f].push_back(factors[f].scope_strides[i]);
      }
    }
    digits_.assign(sizes_.size(), 0);
  }

  size_t rowLength() const { return sizes_.empty() ? 1 : sizes_.front(); }
  bool isAlongRow(size_t f) const { return !sizes_.empty() && strides_[f].front() != 0; }
  size_t offset(size_t f) const { return offsets_[f]; }
  void next() {
    for (size_t d = 1; d < sizes_.size(); ++d) {
      const bool is_last = ++digits_[d] == sizes_[d];
      for (size_t f = 0; f < offsets_.size(); ++f) {
        offsets_[f] += strides_[f][d];
        if (is_last) offsets_[f] -= strides_[f][d] * sizes_[d];
      }
      if (!is_last) return;
      digits_[d] = 0;
    }
  }

 private:
  std::vector<size_t> sizes_;                 // fastest first
  std::vector<std::vector<size_t>> strides_;  // by factor
  std::vector<size_t> digits_;
  std::vector<size_t> offsets_;  // by factor
};

// What a step's variable costs before a row's own entries come on top: its unary costs and the
// factors that are constant along rows. Only values with a finite sum are listed.
class Elimination::Run::BaseCosts {
 public:
  BaseCosts(const std::vector<double>& unary, const std::vector<Factor>& factors,
            const std::vector<size_t>& across)
      : factors_(across),
        offsets_(across.size(), 0),
        sum_(unary),
        costs_(unary.size()),
        values_(unary.size()) {
    for (const size_t f : across) {
      const size_t stride = factors[f].own_stride;
      std::vector<double>& table = tables_.emplace_back(unary.size() * stride);
      for (size_t a = 0; a < unary.size(); ++a) {
        const double* from = factors[f].costs + a * stride;
        double* to = table.data() + a;
        const double own = tables_.size() == 1 ? unary[a] : 0.0;
        for (size_t at = 0; at < stride; ++at) to[at * unary.size()] = own + from[at];
      }
    }
  }

  void moveTo(const RowWalk& walk) {
    bool is_here = count_ > 0;
    for (size_t i = 0; i < factors_.size(); ++i) {
      is_here = is_here && offsets_[i] == walk.offset(factors_[i]);
      offsets_[i] = walk.offset(factors_[i]);
    }
    if (is_here) return;
    const size_t n = sum_.size();
    const double* sum = sum_.data();
    if (!tables_.empty()) sum = tables_[0].data() + offsets_[0] * n;
    if (tables_.size() > 1) {
      std::copy(sum, sum + n, sum_.begin());
      for (size_t i = 1; i < tables_.size(); ++i) {
        min_plus::add(sum_.data(), tables_[i].data() + offsets_[i] * n, n);
      }
      sum = sum_.data();
    }
    // Without branches: which sums are finite cannot be foreseen.
    double* costs = costs_.data();
    size_t* values = values_.data();
    count_ = 0;
    for (size_t a = 0; a < n; ++a) {
      costs[count_] = sum[a];
      values[count_] = a;
      count_ += static_cast<size_t>(sum[a] != kInfinity);
    }
  }
  std::span<const double> costs() const { return {costs_.data(), count_}; }
  std::span<const size_t> values() const { return {values_.data(), count_}; }

 private:
  const std::vector<size_t>& factors_;
  // By factor: its offset slowest, then the value; the first has the unary costs, too.
  std::vector<std::vector<double>> tables_;
  std::vector<size_t> offsets_;  // by factor, of the sums at hand
  std::vector<double> sum_;
  std::vector<double> costs_;
  std::vector<size_t> values_;
  size_t count_ = 0;
};

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
  std::vector<size_t> sizes;
  for (const int32_t v : step.scope) sizes.push_back(numValues(v));
  RowWalk walk(sizes, factors);
  const size_t row_length = walk.rowLength();
  std::vector<double> out(static_cast<size_t>(step.num_entries), kInfinity);
  std::vector<size_t> along_row;
  std::vector<size_t> across;
  for (size_t f = 0; f < factors.size(); ++f)
    (walk.isAlongRow(f) ? along_row : across).push_back(f);
  BaseCosts base(unary, factors, across);
  std::vector<double> sum(row_length);
  size_t work_since_check = 0;
  for (size_t start = 0; start < out.size(); start += row_length) {
    base.moveTo(walk);
    const auto rows = [&](size_t i) {
      return factors[along_row[i]].costs + walk.offset(along_row[i]);
    };
    const auto stride = [&](size_t i) { return factors[along_row[i]].own_stride; };
    double* out_row = out.data() + start;
    if (along_row.empty()) {
      for (const double cost : base.costs()) *out_row = std::min(*out_row, cost);
    } else if (along_row.size() == 1) {
      min_plus::relaxAll(out_row, row_length, base.costs(), base.values(), rows(0), stride(0));
    } else if (along_row.size() == 2) {
      min_plus::relaxSumAll(out_row, row_length, base.costs(), base.values(), rows(0), stride(0),
                            rows(1), stride(1));
    } else {
      const size_t last = along_row.size() - 1;
      for (size_t i = 0; i < base.costs().size(); ++i) {
        const auto row = [&](size_t k) { return rows(k) + base.values()[i] * stride(k); };
        min_plus::assign(sum.data(), base.costs()[i], row(0), row_length);
        for (size_t k = 1; k < last; ++k) min_plus::add(sum.data(), row(k), row_length);
        min_plus::relaxSum(out_row, 0.0, sum.data(), row(last), row_length);
      }
    }
    work_since_check += row_length * unary.size();
    if (work_since_check > kWorkBetweenChecks) {
      work_since_check = 0;
      if (stop_ && stop_()) return std::nullopt;
    }
    walk.next();
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
