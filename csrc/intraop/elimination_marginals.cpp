#include <algorithm>
#include <map>
#include <utility>

#include "intraop/elimination_run.h"
#include "intraop/min_plus.h"

namespace shardwright {

// What lies outside a step flows back from its parent; with it the step knows the least cost of
// each of its values, and what lies outside each child. Constants are dropped on the way and put
// back from the known optimum.
std::optional<UnaryCosts> Elimination::Run::marginals() {
  UnaryCosts result(plan_.steps_.size());
  std::vector<MessagePtr> from_parent(plan_.steps_.size());
  std::map<std::pair<int32_t, int32_t>, Returned> known;  // (step name, message id) -> result
  for (size_t s = plan_.steps_.size(); s-- > 0;) {
    const Step& step = plan_.steps_[s];
    const std::pair<int32_t, int32_t> key{step_names_[s], from_parent[s] ? from_parent[s]->id : -1};
    auto it = known.find(key);
    if (it == known.end()) {
      std::optional<Returned> returned = returnThrough(s, from_parent[s]);
      if (!returned) return std::nullopt;
      it = known.emplace(key, std::move(*returned)).first;
    }
    const Returned& returned = it->second;
    const double least = min_plus::least(returned.marginals.data(), returned.marginals.size());
    std::vector<double>& costs = result[static_cast<size_t>(step.variable)];
    for (double cost : returned.marginals) costs.push_back(total_ + (cost - least));
    for (size_t c = 0; c < step.children.size(); ++c) {
      from_parent[static_cast<size_t>(step.children[c])] = returned.to_children[c];
    }
  }
  return result;
}

std::optional<Elimination::Run::Returned> Elimination::Run::returnThrough(
    size_t s, const MessagePtr& from_parent) {
  const Step& step = plan_.steps_[s];
  std::vector<Factor> factors = factorsOf(s);
  const size_t first_child = step.edges.size();
  const size_t depth = step.scope.size();
  if (from_parent) {
    Factor outside{from_parent->costs.data(), 0, std::vector<size_t>(depth, 0)};
    size_t stride = 1;
    for (size_t i = depth; i-- > 0;) {
      outside.scope_strides[i] = stride;
      stride *= numValues(step.scope[i]);
    }
    factors.push_back(std::move(outside));
  }
  const std::vector<double>& unary = unaryOf(step);
  Returned returned;
  returned.marginals.assign(unary.size(), kInfinity);
  std::vector<std::vector<double>> to_child(step.children.size());
  for (size_t c = 0; c < to_child.size(); ++c) {
    const Step& child = plan_.steps_[static_cast<size_t>(step.children[c])];
    to_child[c].assign(static_cast<size_t>(child.num_entries), kInfinity);
  }
  const size_t row_length = depth == 0 ? 1 : numValues(step.scope.back());
  const auto num_rows = static_cast<size_t>(step.num_entries) / row_length;
  const auto along_row = [&](const Factor& factor) {
    return depth > 0 && factor.scope_strides.back() != 0;
  };
  std::vector<size_t> digits(depth, 0);
  std::vector<size_t> offsets(factors.size());
  std::vector<double> sum(row_length);
  size_t work_since_check = 0;
  for (size_t r = 0; r < num_rows; ++r) {
    for (size_t f = 0; f < factors.size(); ++f) {
      offsets[f] = depth == 0 ? 0 : offsetOf(factors[f], digits);
    }
    for (size_t a = 0; a < unary.size(); ++a) {
      double base = unary[a];
      for (size_t f = 0; f < factors.size(); ++f) {
        if (!along_row(factors[f])) {
          base += factors[f].costs[offsets[f] + a * factors[f].own_stride];
        }
      }
      if (base == kInfinity) continue;
      std::fill(sum.begin(), sum.end(), base);
      for (size_t f = 0; f < factors.size(); ++f) {
        if (!along_row(factors[f])) continue;
        min_plus::add(sum.data(), factors[f].costs + offsets[f] + a * factors[f].own_stride,
                      row_length);
      }
      const double least = min_plus::least(sum.data(), row_length);
      if (least == kInfinity) continue;
      returned.marginals[a] = std::min(returned.marginals[a], least);
      for (size_t c = 0; c < to_child.size(); ++c) {
        const Factor& factor = factors[first_child + c];
        const size_t at = offsets[first_child + c] + a * factor.own_stride;
        double* out = to_child[c].data() + at;
        if (along_row(factor)) {
          min_plus::relaxDifference(out, sum.data(), factor.costs + at, row_length);
        } else {
          *out = std::min(*out, least - factor.costs[at]);
        }
      }
    }
    work_since_check += row_length * unary.size();
    if (work_since_check > 20'000'000) {
      work_since_check = 0;
      if (stop_ && stop_()) return std::nullopt;
    }
    if (depth > 0) advance(step, digits);
  }
  for (std::vector<double>& costs : to_child) {
    const double least = min_plus::least(costs.data(), costs.size());
    if (least != kInfinity) {
      for (double& cost : costs) cost -= least;
    }
    returned.to_children.push_back(internMessage(std::move(costs)));
  }
  return returned;
}

}  // namespace shardwright
