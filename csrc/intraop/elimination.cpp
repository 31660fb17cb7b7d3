#include "intraop/elimination.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace shardwright {
namespace {

// The kernels below carry nearly all of the work; the compiler vectorises them per instruction set.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDWRIGHT_VECTORISED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define SHARDWRIGHT_VECTORISED
#endif

SHARDWRIGHT_VECTORISED void minPlusRow(double* out, double base, const double* p, size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const double cost = base + p[b];
    out[b] = cost < out[b] ? cost : out[b];
  }
}

SHARDWRIGHT_VECTORISED void minPlusRow2(double* out, double base, const double* p, const double* q,
                                        size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const double cost = base + p[b] + q[b];
    out[b] = cost < out[b] ? cost : out[b];
  }
}

SHARDWRIGHT_VECTORISED void addRow(double* sum, const double* p, size_t n) {
  for (size_t b = 0; b < n; ++b) sum[b] += p[b];
}

#undef SHARDWRIGHT_VECTORISED

// Costs over a step's scope, first variable slowest; the least entry is 0 (or all are infinite).
struct Message {
  std::vector<double> costs;
  double least = 0.0;  // what was subtracted
  int32_t id = 0;
};

// One table in a bucket, seen from the step: strides for the step's variable and its scope.
struct Factor {
  const double* costs = nullptr;
  size_t own_stride = 0;
  std::vector<size_t> scope_strides;  // 0 where the table does not depend on that variable
};

}  // namespace

class Elimination::Run {
 public:
  Run(const Elimination& plan, const UnaryCosts& unary, const std::function<bool()>& stop)
      : plan_(plan), unary_(unary), stop_(stop) {}

  // Sends every message; false when stopped.
  bool forward() {
    total_ = plan_.problem_.offset();
    messages_.resize(plan_.steps_.size());
    unary_names_.resize(plan_.steps_.size());
    for (size_t s = 0; s < plan_.steps_.size(); ++s) {
      if (!sendMessage(s)) return false;
    }
    return true;
  }

  double total() const { return total_; }

  std::vector<int32_t> backtrack() const {
    std::vector<int32_t> labels(plan_.steps_.size(), 0);
    for (size_t s = plan_.steps_.size(); s-- > 0;) {
      const Step& step = plan_.steps_[s];
      const std::vector<Factor> factors = factorsOf(s);
      std::vector<const double*> rows;
      for (const Factor& factor : factors) {
        const double* row = factor.costs;
        for (size_t i = 0; i < step.scope.size(); ++i) {
          row += factor.scope_strides[i] *
                 static_cast<size_t>(labels[static_cast<size_t>(step.scope[i])]);
        }
        rows.push_back(row);
      }
      const std::vector<double>& unary = unary_[static_cast<size_t>(step.variable)];
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
    return labels;
  }

  std::optional<UnaryCosts> marginals();

 private:
  size_t numValues(int32_t v) const {
    return static_cast<size_t>(plan_.problem_.variables()[static_cast<size_t>(v)].numValues());
  }

  std::vector<Factor> factorsOf(size_t s) const {
    const Step& step = plan_.steps_[s];
    std::vector<Factor> factors;
    for (int32_t e : step.edges) {
      const ReducedEdge& edge = plan_.problem_.edges()[static_cast<size_t>(e)];
      const bool u_goes = edge.u == step.variable;
      const Matrix& table = plan_.problem_.table(u_goes ? edge.table : edge.transposed_table);
      Factor factor{table.costs.data(), static_cast<size_t>(table.num_cols),
                    std::vector<size_t>(step.scope.size(), 0)};
      const int32_t other = u_goes ? edge.v : edge.u;
      const auto at = std::find(step.scope.begin(), step.scope.end(), other);
      factor.scope_strides[static_cast<size_t>(at - step.scope.begin())] = 1;
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
          const auto at = std::find(step.scope.begin(), step.scope.end(), y);
          factor.scope_strides[static_cast<size_t>(at - step.scope.begin())] = stride;
        }
        stride *= numValues(y);
      }
      factors.push_back(std::move(factor));
    }
    return factors;
  }

  // Everything a message depends on, named by content.
  std::vector<int32_t> nameOf(size_t s) {
    const Step& step = plan_.steps_[s];
    const auto local = [&](int32_t v) {
      if (v == step.variable) return -1;
      return static_cast<int32_t>(std::find(step.scope.begin(), step.scope.end(), v) -
                                  step.scope.begin());
    };
    std::vector<std::vector<int32_t>> parts;
    for (int32_t e : step.edges) {
      const ReducedEdge& edge = plan_.problem_.edges()[static_cast<size_t>(e)];
      const bool u_goes = edge.u == step.variable;
      parts.push_back(
          {0, u_goes ? edge.table : edge.transposed_table, local(u_goes ? edge.v : edge.u)});
    }
    for (int32_t child : step.children) {
      std::vector<int32_t> part{1, messages_[static_cast<size_t>(child)]->id};
      for (int32_t y : plan_.steps_[static_cast<size_t>(child)].scope) part.push_back(local(y));
      parts.push_back(std::move(part));
    }
    std::sort(parts.begin(), parts.end());
    const auto& costs = unary_[static_cast<size_t>(step.variable)];
    unary_names_[s] =
        unary_ids_.emplace(costs, static_cast<int32_t>(unary_ids_.size())).first->second;
    std::vector<int32_t> name{unary_names_[s]};
    for (int32_t y : step.scope) name.push_back(static_cast<int32_t>(numValues(y)));
    for (const auto& part : parts) {
      name.push_back(-2);
      name.insert(name.end(), part.begin(), part.end());
    }
    return name;
  }

  bool sendMessage(size_t s) {
    std::vector<int32_t> name = nameOf(s);
    if (const auto it = message_of_name_.find(name); it != message_of_name_.end()) {
      messages_[s] = it->second.message;
      total_ += it->second.least;
      return true;
    }
    std::optional<std::vector<double>> costs = eliminate(s);
    if (!costs) return false;
    double least = *std::min_element(costs->begin(), costs->end());
    if (least == kInfinity) {
      total_ = kInfinity;
      least = 0.0;
    } else {
      for (double& cost : *costs) cost -= least;
      total_ += least;
    }
    std::shared_ptr<const Message> message = internMessage(std::move(*costs));
    messages_[s] = message;
    message_of_name_.emplace(std::move(name), Sent{std::move(message), least});
    return true;
  }

  std::shared_ptr<const Message> internMessage(std::vector<double> costs) {
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
  std::optional<std::vector<double>> eliminate(size_t s) const {
    const Step& step = plan_.steps_[s];
    const std::vector<Factor> factors = factorsOf(s);
    const std::vector<double>& unary = unary_[static_cast<size_t>(step.variable)];
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
      for (size_t f = 0; f < along_row.size(); ++f) {
        row_offset[f] = offsetOf(*along_row[f], digits);
      }
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
          minPlusRow(out_row, base, row(0), row_length);
        } else if (along_row.size() == 2) {
          minPlusRow2(out_row, base, row(0), row(1), row_length);
        } else {
          std::copy(row(0), row(0) + row_length, sum.begin());
          for (size_t f = 1; f + 1 < along_row.size(); ++f) {
            addRow(sum.data(), row(f), row_length);
          }
          minPlusRow2(out_row, base, sum.data(), row(along_row.size() - 1), row_length);
        }
      }
      work_since_check += row_length * unary.size();
      if (work_since_check > 20'000'000) {
        work_since_check = 0;
        if (stop_ && stop_()) return std::nullopt;
      }
      for (size_t i = depth - 1; i-- > 0;) {
        if (++digits[i] < numValues(step.scope[i])) break;
        digits[i] = 0;
      }
    }
    return out;
  }

  static size_t offsetOf(const Factor& factor, const std::vector<size_t>& digits) {
    size_t offset = 0;
    for (size_t i = 0; i + 1 < digits.size(); ++i) offset += factor.scope_strides[i] * digits[i];
    return offset;
  }

  struct Sent {
    std::shared_ptr<const Message> message;
    double least;
  };

  const Elimination& plan_;
  const UnaryCosts& unary_;
  const std::function<bool()>& stop_;
  double total_ = 0.0;
  std::vector<std::shared_ptr<const Message>> messages_;
  std::vector<int32_t> unary_names_;
  std::map<std::vector<double>, int32_t> unary_ids_;
  std::map<std::vector<int32_t>, Sent> message_of_name_;
  std::unordered_multimap<uint64_t, std::shared_ptr<const Message>> message_of_hash_;
};

std::optional<EliminationResult> Elimination::solve(const UnaryCosts& unary,
                                                    const std::function<bool()>& stop) const {
  Run run(*this, unary, stop);
  if (!run.forward()) return std::nullopt;
  EliminationResult result;
  result.optimum = run.total();
  if (result.optimum != kInfinity) result.labels = run.backtrack();
  return result;
}

}  // namespace shardwright
