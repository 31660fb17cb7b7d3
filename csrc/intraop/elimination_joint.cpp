#include <utility>

#include "intraop/elimination_run.h"

namespace shardwright {

// The steps of kept variables come last, and their scopes hold kept variables only: the sum of what
// is in their buckets, instead of its minimum, is the cost of an assignment.
std::vector<double> Elimination::Run::jointCosts() const {
  const std::vector<int32_t>& kept = plan_.kept_;
  const size_t first = plan_.steps_.size() - kept.size();
  double constant = plan_.problem_.offset();
  for (size_t s = 0; s < first; ++s) {
    // A table without a finite entry is infinite itself, its least entry is 0.
    constant += least_[s];
  }
  std::vector<std::vector<Factor>> factors;
  size_t num_entries = 1;
  for (size_t k = 0; k < kept.size(); ++k) {
    // But for what an earlier kept variable would leave: it is not eliminated here.
    const Step& step = plan_.steps_[first + k];
    std::vector<Factor> all = factorsOf(first + k);
    std::vector<Factor>& own = factors.emplace_back();
    for (size_t f = 0; f < all.size(); ++f) {
      const bool is_message = f >= step.edges.size();
      if (!is_message || static_cast<size_t>(step.children[f - step.edges.size()]) < first) {
        own.push_back(std::move(all[f]));
      }
    }
    num_entries *= numValues(kept[k]);
  }
  // Tables over no variable at all have no parent: what they hold is in their least entry, but for
  // an infinite one.
  for (size_t s = 0; s < first; ++s) {
    if (plan_.steps_[s].scope.empty() && messages_[s]->costs[0] == kInfinity) constant = kInfinity;
  }
  std::vector<double> costs(num_entries, constant);
  std::vector<size_t> digits(kept.size(), 0);
  for (double& cost : costs) {
    for (size_t k = 0; k < kept.size(); ++k) {
      const Step& step = plan_.steps_[first + k];
      cost += unaryOf(step)[digits[k]];
      for (const Factor& factor : factors[k]) {
        size_t at = factor.own_stride * digits[k];
        for (size_t i = 0; i < step.scope.size(); ++i) {
          const auto other =
              static_cast<size_t>(plan_.position_[static_cast<size_t>(step.scope[i])]);
          at += factor.scope_strides[i] * digits[other - first];
        }
        cost += factor.costs[at];
      }
    }
    for (size_t k = kept.size(); k-- > 0;) {
      if (++digits[k] < numValues(kept[k])) break;
      digits[k] = 0;
    }
  }
  return costs;
}

struct JointCosts::State {
  State(const Elimination& elimination, UnaryCosts unary_costs)
      : plan(elimination), unary(std::move(unary_costs)), run(elimination, unary, never) {
    run.forward();
    for (size_t s = 0; s < plan.steps_.size(); ++s) factors.push_back(run.factorsOf(s));
  }

  const Elimination& plan;
  UnaryCosts unary;
  std::function<bool()> never;
  Elimination::Run run;
  std::vector<std::vector<Elimination::Run::Factor>> factors;  // by step
};

JointCosts::JointCosts(std::unique_ptr<State> state)
    : state_(std::move(state)), costs_(state_->run.jointCosts()) {}
JointCosts::~JointCosts() = default;
JointCosts::JointCosts(JointCosts&&) noexcept = default;
JointCosts& JointCosts::operator=(JointCosts&&) noexcept = default;

JointCosts Elimination::jointCosts(UnaryCosts unary) const {
  return JointCosts(std::make_unique<JointCosts::State>(*this, std::move(unary)));
}

std::vector<int32_t> JointCosts::labels(const std::vector<int32_t>& kept_values) const {
  const Elimination& plan = state_->plan;
  std::vector<int32_t> labels(plan.steps_.size(), 0);
  for (size_t k = 0; k < kept_values.size(); ++k) {
    labels[static_cast<size_t>(plan.kept_[k])] = kept_values[k];
  }
  for (size_t s = plan.steps_.size() - kept_values.size(); s-- > 0;) {
    state_->run.choose(s, state_->factors[s], labels);
  }
  return labels;
}

}  // namespace shardwright
