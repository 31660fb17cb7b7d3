// Which pairs of variables message passing would gain most from seeing as one.
// Source: Sontag, Meltzer, Globerson, Jaakkola, Weiss, "Tightening LP relaxations for MAP using
// message passing", UAI 2008: clusters are scored by the gain of one local step.
#include <algorithm>
#include <map>
#include <tuple>

#include "intraop/message_passing.h"
#include "intraop/min_plus.h"

namespace shardwright {
namespace {

constexpr double kMaxJointValues = 300.0;
constexpr double kMaxTriangleEntries = 60'000.0;
constexpr double kMaxGrowth = 1.0;  // of all entries, in one round of joins

// Costs of an edge as the messages leave them, with the share of its ends that is the edge's.
struct ViewedEdge {
  Matrix costs;
  Matrix transposed;
  double least = kInfinity;
};

// Least of ab[a, b] + bc[b, c] + ac[a, c]; cb is bc transposed.
double leastTriangle(const Matrix& ab, const Matrix& cb, const Matrix& ca) {
  double least = kInfinity;
  for (int32_t c = 0; c < cb.num_rows; ++c) {
    for (int32_t a = 0; a < ab.num_rows; ++a) {
      const double first = ca.at(c, a);
      if (!(first < least)) continue;
      least = std::min(least, first + min_plus::leastSum(ab.row(a), cb.row(c),
                                                         static_cast<size_t>(ab.num_cols)));
    }
  }
  return least;
}

}  // namespace

std::vector<std::pair<int32_t, int32_t>> MessagePassing::worthJoining() {
  const size_t num_edges = problem_.edges().size();
  std::vector<std::vector<double>> shares;  // of each variable's costs, for one edge
  for (int32_t v = 0; v < problem_.numVariables(); ++v) {
    const size_t n = gather(v);
    min_plus::normalise(incoming_.data(), n, kInfinity);
    const Node& node = nodes_[static_cast<size_t>(v)];
    const auto degree = static_cast<double>(node.earlier.size() + node.later.size());
    std::vector<double> share(incoming_.begin(), incoming_.begin() + static_cast<ptrdiff_t>(n));
    for (double& cost : share) cost /= std::max(1.0, degree);
    shares.push_back(std::move(share));
  }
  std::vector<ViewedEdge> viewed(num_edges);
  std::map<std::pair<int32_t, int32_t>, size_t> edge_of_pair;
  for (size_t e = 0; e < num_edges; ++e) {
    const ReducedEdge& edge = problem_.edges()[e];
    edge_of_pair[{edge.u, edge.v}] = e;
    ViewedEdge& view = viewed[e];
    view.costs = problem_.table(edge.table);
    const auto to_u = messageToU(e);
    const auto to_v = messageToV(e);
    for (int32_t a = 0; a < view.costs.num_rows; ++a) {
      for (int32_t b = 0; b < view.costs.num_cols; ++b) {
        double& cost =
            view.costs.costs[static_cast<size_t>(a) * static_cast<size_t>(view.costs.num_cols) +
                             static_cast<size_t>(b)];
        const auto row = static_cast<size_t>(a);
        const auto col = static_cast<size_t>(b);
        cost += shares[static_cast<size_t>(edge.u)][row] - to_u[row] +
                shares[static_cast<size_t>(edge.v)][col] - to_v[col];
        view.least = std::min(view.least, cost);
      }
    }
    view.transposed = view.costs.transposed();
  }
  // Every triangle u < v < w, from its edge (u, v).
  std::vector<double> gain(num_edges, 0.0);
  for (size_t uv = 0; uv < num_edges; ++uv) {
    const ReducedEdge& edge = problem_.edges()[uv];
    for (const Side& side : nodes_[static_cast<size_t>(edge.v)].later) {
      const auto found = edge_of_pair.find({edge.u, side.other});
      if (found == edge_of_pair.end()) continue;
      const size_t uw = found->second;
      const auto vw = static_cast<size_t>(side.edge);
      const double entries = static_cast<double>(viewed[uv].costs.costs.size()) *
                             static_cast<double>(viewed[vw].costs.num_cols);
      if (entries > kMaxTriangleEntries) continue;
      const double least =
          leastTriangle(viewed[uv].costs, viewed[vw].transposed, viewed[uw].transposed);
      const double rise = least - viewed[uv].least - viewed[vw].least - viewed[uw].least;
      if (!(rise > 0.0) || rise == kInfinity) continue;
      for (size_t e : {uv, vw, uw}) gain[e] += rise;
    }
  }
  std::vector<std::tuple<double, double, size_t>> order;
  for (size_t e = 0; e < num_edges; ++e) {
    if (!(gain[e] > 0.0)) continue;
    const ReducedEdge& edge = problem_.edges()[e];
    const std::vector<double>& costs = viewed[e].costs.costs;
    const auto pairs = static_cast<double>(
        std::count_if(costs.begin(), costs.end(), [](double cost) { return cost < kInfinity; }));
    if (pairs > kMaxJointValues) continue;
    double growth = -static_cast<double>(costs.size());
    for (int32_t end : {edge.u, edge.v}) {
      const Node& node = nodes_[static_cast<size_t>(end)];
      const double own = problem_.variables()[static_cast<size_t>(end)].numValues();
      for (const auto* sides : {&node.earlier, &node.later}) {
        for (const Side& side : *sides) {
          if (static_cast<size_t>(side.edge) == e) continue;
          growth += (pairs - own) * static_cast<double>(side.table->num_cols);
        }
      }
    }
    order.emplace_back(-gain[e] / std::max(100.0, growth), growth, e);
  }
  std::sort(order.begin(), order.end());
  std::vector<char> taken(nodes_.size(), 0);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  double room = kMaxGrowth * problem_.numEntries();
  for (const auto& [score, growth, e] : order) {
    const ReducedEdge& edge = problem_.edges()[e];
    if (taken[static_cast<size_t>(edge.u)] || taken[static_cast<size_t>(edge.v)]) continue;
    if (growth > room) continue;
    room -= std::max(0.0, growth);
    taken[static_cast<size_t>(edge.u)] = taken[static_cast<size_t>(edge.v)] = 1;
    pairs.emplace_back(edge.u, edge.v);
  }
  return pairs;
}

}  // namespace shardwright
