#include "intraop/message_passing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "intraop/min_plus.h"

namespace shardwright {

MessagePassing::MessagePassing(const ReducedProblem& problem)
    : problem_(problem),
      nodes_(problem.variables().size()),
      labels_(problem.variables().size(), 0) {
  for (const ReducedVariable& variable : problem.variables()) {
    costs_.unary.push_back(variable.costs);
  }
  size_t offset = 0;
  for (size_t e = 0; e < problem.edges().size(); ++e) {
    const ReducedEdge& edge = problem.edges()[e];
    const Matrix& table = problem.table(edge.table);
    const size_t to_v = offset;
    to_v_.push_back(to_v);
    const size_t to_u = to_v + static_cast<size_t>(table.num_cols);
    offset = to_u + static_cast<size_t>(table.num_rows);
    const auto id = static_cast<int32_t>(e);
    nodes_[static_cast<size_t>(edge.u)].later.push_back({id, edge.v, &table, to_u, to_v});
    nodes_[static_cast<size_t>(edge.v)].earlier.push_back(
        {id, edge.u, &problem.table(edge.transposed_table), to_v, to_u});
  }
  messages_.assign(offset, 0.0);
  size_t max_values = 1;
  size_t max_degree = 1;
  for (size_t v = 0; v < nodes_.size(); ++v) {
    Node& node = nodes_[v];
    const size_t chains = std::max(node.earlier.size(), node.later.size());
    node.share = 1.0 / static_cast<double>(std::max<size_t>(1, chains));
    max_values = std::max(max_values, problem.variables()[v].costs.size());
    max_degree = std::max(max_degree, node.earlier.size() + node.later.size());
  }
  incoming_.resize(max_values);
  base_.resize(max_values);
  // Lowering a message keeps the bound valid; the cap keeps sums of messages exact.
  cap_ = problem.quantum() * 1125899906842624.0 / static_cast<double>(2 * max_degree);
}

std::span<const double> MessagePassing::messageToU(size_t e) const {
  const Matrix& table = problem_.table(problem_.edges()[e].table);
  return {&messages_[to_v_[e] + static_cast<size_t>(table.num_cols)],
          static_cast<size_t>(table.num_rows)};
}

std::span<const double> MessagePassing::messageToV(size_t e) const {
  const Matrix& table = problem_.table(problem_.edges()[e].table);
  return {&messages_[to_v_[e]], static_cast<size_t>(table.num_cols)};
}

void MessagePassing::setMessage(size_t offset, std::span<const double> costs) {
  const double quantum = problem_.quantum();
  double* out = &messages_[offset];
  for (size_t a = 0; a < costs.size(); ++a) {
    out[a] = std::floor(std::min(costs[a], cap_) / quantum) * quantum;
  }
  min_plus::normalise(out, costs.size(), cap_);
}

void MessagePassing::setMessageToU(size_t e, std::span<const double> costs) {
  setMessage(to_v_[e] + static_cast<size_t>(problem_.table(problem_.edges()[e].table).num_cols),
             costs);
}

void MessagePassing::setMessageToV(size_t e, std::span<const double> costs) {
  setMessage(to_v_[e], costs);
}

void MessagePassing::setCosts(WeightedCosts costs) { costs_ = std::move(costs); }

size_t MessagePassing::gather(int32_t v) {
  const std::vector<double>& unary = costs_.unary[static_cast<size_t>(v)];
  std::copy(unary.begin(), unary.end(), incoming_.begin());
  const Node& node = nodes_[static_cast<size_t>(v)];
  for (const Side& side : node.later) {
    min_plus::add(incoming_.data(), &messages_[side.from_other], unary.size());
  }
  for (const Side& side : node.earlier) {
    min_plus::add(incoming_.data(), &messages_[side.from_other], unary.size());
  }
  return unary.size();
}

// Takes the best value given the earlier variables' values and the later ones' messages.
void MessagePassing::decide(int32_t v) {
  const std::vector<double>& unary = costs_.unary[static_cast<size_t>(v)];
  std::copy(unary.begin(), unary.end(), base_.begin());
  const Node& node = nodes_[static_cast<size_t>(v)];
  for (const Side& side : node.later) {
    min_plus::add(base_.data(), &messages_[side.from_other], unary.size());
  }
  for (const Side& side : node.earlier) {
    const Matrix& costs = problem_.table(problem_.edges()[static_cast<size_t>(side.edge)].table);
    min_plus::add(base_.data(), costs.row(labels_[static_cast<size_t>(side.other)]), unary.size());
  }
  labels_[static_cast<size_t>(v)] = static_cast<int32_t>(
      std::min_element(base_.begin(), base_.begin() + static_cast<ptrdiff_t>(unary.size())) -
      base_.begin());
}

double MessagePassing::send(const Side& side, double share, size_t n) {
  min_plus::splitOff(base_.data(), share, incoming_.data(), &messages_[side.from_other], n,
                     problem_.quantum());
  double* out = &messages_[side.to_other];
  const auto num_out = static_cast<size_t>(side.table->num_cols);
  min_plus::multiply(out, base_.data(), side.table->costs.data(), n, num_out);
  return min_plus::normalise(out, num_out, cap_);
}

// passed, when given: for each variable, the constants collected before it.
double MessagePassing::forward(std::vector<double>* passed) {
  double collected = 0.0;
  for (int32_t v = 0; v < problem_.numVariables(); ++v) {
    if (passed) passed->push_back(collected);
    decide(v);
    const size_t n = gather(v);
    const double least = min_plus::normalise(incoming_.data(), n, kInfinity);
    collected += least;
    const Node& node = nodes_[static_cast<size_t>(v)];
    for (const Side& side : node.later) collected += send(side, node.share, n);
  }
  return collected;
}

double MessagePassing::sweep() {
  forward(nullptr);
  double bound = problem_.offset() - costs_.constant;
  for (int32_t v = problem_.numVariables() - 1; v >= 0; --v) {
    const size_t n = gather(v);
    bound += min_plus::normalise(incoming_.data(), n, kInfinity);
    const Node& node = nodes_[static_cast<size_t>(v)];
    for (const Side& side : node.earlier) bound += send(side, node.share, n);
  }
  return bound;
}

// For a value of v: what the forward pass collected before v, what the backward pass collects after
// v on edges that do not reach before v, and what arrives at the value itself.
MarginalResult MessagePassing::marginals() {
  MarginalResult result;
  result.optimum = -kInfinity;
  result.costs.resize(nodes_.size());
  std::vector<double> before;
  forward(&before);
  std::vector<double> on_later_edges(nodes_.size(), 0.0);
  double after = problem_.offset() - costs_.constant;
  for (int32_t v = problem_.numVariables() - 1; v >= 0; --v) {
    const auto at = static_cast<size_t>(v);
    after += on_later_edges[at];
    const size_t n = gather(v);
    const double elsewhere = before[at] + after;
    for (size_t a = 0; a < n; ++a) result.costs[at].push_back(elsewhere + incoming_[a]);
    const double least = min_plus::normalise(incoming_.data(), n, kInfinity);
    result.optimum = std::max(result.optimum, elsewhere + least);
    after += least;
    const Node& node = nodes_[at];
    for (const Side& side : node.earlier) {
      on_later_edges[static_cast<size_t>(side.other)] += send(side, node.share, n);
    }
  }
  return result;
}

}  // namespace shardwright
