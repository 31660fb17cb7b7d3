#include "intraop/local_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "intraop/min_plus.h"

namespace shardwright {
namespace {

constexpr double kMaxPairEntries = 4096;
constexpr size_t kMaxPairTries = 5;

const MemorySegment* segmentAt(const ReducedVariable& variable, int32_t row) {
  for (const MemorySegment& segment : variable.memory) {
    if (row >= segment.row_begin && row < segment.row_end) return &segment;
  }
  return nullptr;
}

}  // namespace

LocalSearch::LocalSearch(const ReducedProblem& problem, std::vector<int32_t> labels,
                         WorkMeter& meter, std::function<bool()> stop)
    : problem_(problem),
      labels_(std::move(labels)),
      loads_(problem.overloadOf(labels_)),
      is_stale_(labels_.size(), 1),
      try_single_(labels_.size(), 1),
      try_pairs_(labels_.size(), 1),
      meter_(meter),
      stop_(std::move(stop)) {
  size_t num_values = 0;
  for (const ReducedVariable& variable : problem.variables()) {
    first_value_.push_back(num_values);
    num_values += variable.costs.size();
  }
  value_costs_.resize(num_values);
}

void LocalSearch::addNeighbours(int32_t v, const ReducedEdge* left_out, double* costs) const {
  const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(v)];
  const size_t n = variable.costs.size();
  std::copy(variable.costs.begin(), variable.costs.end(), costs);
  for (int32_t e : variable.edges_to_later) {
    const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
    if (&edge == left_out) continue;
    min_plus::add(
        costs, problem_.table(edge.transposed_table).row(labels_[static_cast<size_t>(edge.v)]), n);
  }
  for (int32_t e : variable.edges_to_earlier) {
    const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
    if (&edge == left_out) continue;
    min_plus::add(costs, problem_.table(edge.table).row(labels_[static_cast<size_t>(edge.u)]), n);
  }
  const auto num_edges =
      static_cast<double>(variable.edges_to_later.size() + variable.edges_to_earlier.size());
  meter_.addLookups(1.0 + num_edges);
  meter_.addRows(num_edges * static_cast<double>(n));
}

const double* LocalSearch::valueCosts(int32_t v) {
  const auto at = static_cast<size_t>(v);
  double* costs = &value_costs_[first_value_[at]];
  if (is_stale_[at]) {
    addNeighbours(v, nullptr, costs);
    is_stale_[at] = 0;
  }
  return costs;
}

bool LocalSearch::moveFits(int32_t v, int32_t value) const {
  const int32_t present = labels_[static_cast<size_t>(v)];
  for (const MemorySegment& segment : problem_.variables()[static_cast<size_t>(v)].memory) {
    const int64_t change = segment.excess_bytes[static_cast<size_t>(value)] -
                           segment.excess_bytes[static_cast<size_t>(present)];
    if (change > 0 && loads_.maximum(segment.row_begin, segment.row_end) + change > 0) {
      return false;
    }
  }
  return true;
}

void LocalSearch::move(int32_t v, int32_t value) {
  const int32_t present = labels_[static_cast<size_t>(v)];
  if (value == present) return;
  shiftLoads(v, present, value);
  relabel(v, value);
}

void LocalSearch::shiftLoads(int32_t v, int32_t from, int32_t to) {
  for (const MemorySegment& segment : problem_.variables()[static_cast<size_t>(v)].memory) {
    const int64_t change = segment.excess_bytes[static_cast<size_t>(to)] -
                           segment.excess_bytes[static_cast<size_t>(from)];
    if (change != 0) loads_.add(segment.row_begin, segment.row_end, change);
  }
}

void LocalSearch::relabel(int32_t v, int32_t value) {
  labels_[static_cast<size_t>(v)] = value;
  const auto touch = [&](int32_t w) {
    is_stale_[static_cast<size_t>(w)] = 1;
    try_single_[static_cast<size_t>(w)] = 1;
    try_pairs_[static_cast<size_t>(w)] = 1;
  };
  const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(v)];
  for (int32_t e : variable.edges_to_later) touch(problem_.edges()[static_cast<size_t>(e)].v);
  for (int32_t e : variable.edges_to_earlier) touch(problem_.edges()[static_cast<size_t>(e)].u);
  try_single_[static_cast<size_t>(v)] = 1;
  try_pairs_[static_cast<size_t>(v)] = 1;
}

bool LocalSearch::repair(int max_moves) {
  if (problem_.numRows() == 0) return true;
  for (int count = 0; loads_.maximum() > 0; ++count) {
    if (count >= max_moves || stopped()) return false;
    const int32_t row = loads_.worstRow();
    const auto excess = static_cast<double>(loads_.maximum());
    double best_price = kInfinity;
    int32_t best_variable = -1;
    int32_t best_value = 0;
    for (int32_t v = 0; v < problem_.numVariables(); ++v) {
      const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(v)];
      const MemorySegment* segment = segmentAt(variable, row);
      if (!segment) continue;
      const double* costs = valueCosts(v);
      const double present = costs[labels_[static_cast<size_t>(v)]];
      const int64_t held =
          segment->excess_bytes[static_cast<size_t>(labels_[static_cast<size_t>(v)])];
      for (int32_t a = 0; a < variable.numValues(); ++a) {
        const auto freed =
            static_cast<double>(held - segment->excess_bytes[static_cast<size_t>(a)]);
        if (freed <= 0.0) continue;
        const double change = costs[a] - present;
        if (!(change < kInfinity)) continue;
        double price =
            std::max(change, 0.0) / std::min(freed, excess) + std::min(change, 0.0) * 1e-12;
        // Freeing bytes here by filling them elsewhere is a last resort.
        if (!moveFits(v, a)) price = price * 100.0 + 1e3;
        if (price < best_price) {
          best_price = price;
          best_variable = v;
          best_value = a;
        }
      }
    }
    if (best_variable < 0) return false;
    move(best_variable, best_value);
  }
  return true;
}

void LocalSearch::improve(bool with_pairs) {
  do {
    while (!stopped() && improveSingles()) {
    }
  } while (with_pairs && !stopped() && improvePairs());
}

bool LocalSearch::improveSingles() {
  bool changed = false;
  for (int32_t v = 0; v < problem_.numVariables(); ++v) {
    if (v % 1024 == 0 && stopped()) return false;
    if (try_single_[static_cast<size_t>(v)] && improveSingle(v)) changed = true;
  }
  return changed;
}

bool LocalSearch::improveSingle(int32_t v) {
  const double* costs = valueCosts(v);
  const int32_t n = problem_.variables()[static_cast<size_t>(v)].numValues();
  const double present = costs[labels_[static_cast<size_t>(v)]];
  double best = present;
  int32_t best_value = -1;
  bool is_blocked = false;
  for (int32_t a = 0; a < n; ++a) {
    if (!(costs[a] < best)) continue;
    if (moveFits(v, a)) {
      best = costs[a];
      best_value = a;
    } else {
      is_blocked = true;
    }
  }
  // Tried again as soon as any pass has moved memory.
  try_single_[static_cast<size_t>(v)] = is_blocked ? 1 : 0;
  if (best_value < 0) return false;
  move(v, best_value);
  return true;
}

bool LocalSearch::improvePairs() {
  bool changed = false;
  size_t count = 0;
  std::vector<char> to_try(labels_.size(), 0);
  to_try.swap(try_pairs_);
  for (const ReducedEdge& edge : problem_.edges()) {
    if (++count % 1024 == 0 && stopped()) return false;
    if (!to_try[static_cast<size_t>(edge.u)] && !to_try[static_cast<size_t>(edge.v)]) continue;
    if (improvePair(edge)) changed = true;
  }
  return changed;
}

bool LocalSearch::improvePair(const ReducedEdge& edge) {
  const Matrix& table = problem_.table(edge.table);
  if (static_cast<double>(table.costs.size()) > kMaxPairEntries) return false;
  meter_.addRows(static_cast<double>(table.costs.size()));
  const int32_t present_u = labels_[static_cast<size_t>(edge.u)];
  const int32_t present_v = labels_[static_cast<size_t>(edge.v)];
  // What each end costs on its own, without the edge between them.
  costs_u_.resize(static_cast<size_t>(table.num_rows));
  costs_v_.resize(static_cast<size_t>(table.num_cols));
  addNeighbours(edge.u, &edge, costs_u_.data());
  addNeighbours(edge.v, &edge, costs_v_.data());
  const double present = costs_u_[static_cast<size_t>(present_u)] +
                         costs_v_[static_cast<size_t>(present_v)] + table.at(present_u, present_v);
  std::vector<std::tuple<double, int32_t, int32_t>> candidates;
  for (int32_t a = 0; a < table.num_rows; ++a) {
    const double cost_u = costs_u_[static_cast<size_t>(a)];
    const double* row = table.row(a);
    if (a == present_u ||
        !(cost_u + min_plus::leastSum(costs_v_.data(), row, costs_v_.size()) < present)) {
      continue;
    }
    for (int32_t b = 0; b < table.num_cols; ++b) {
      const double cost = cost_u + costs_v_[static_cast<size_t>(b)] + row[b];
      if (cost < present && b != present_v) candidates.emplace_back(cost, a, b);
    }
  }
  const size_t tries = std::min(kMaxPairTries, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(tries),
                    candidates.end());
  for (size_t i = 0; i < tries; ++i) {
    const auto [cost, u_value, v_value] = candidates[i];
    shiftLoads(edge.u, present_u, u_value);
    shiftLoads(edge.v, present_v, v_value);
    if (loads_.maximum() <= 0) {
      relabel(edge.u, u_value);
      relabel(edge.v, v_value);
      return true;
    }
    shiftLoads(edge.u, u_value, present_u);
    shiftLoads(edge.v, v_value, present_v);
  }
  return false;
}

std::vector<LocalSearch::Piece> LocalSearch::piecesOf(const std::vector<int32_t>& other) const {
  meter_.addLookups(static_cast<double>(labels_.size()));
  std::vector<int32_t> piece_of(labels_.size(), -1);
  std::vector<Piece> pieces;
  const auto differs = [&](int32_t v) {
    return labels_[static_cast<size_t>(v)] != other[static_cast<size_t>(v)];
  };
  for (int32_t seed = 0; seed < problem_.numVariables(); ++seed) {
    if (!differs(seed) || piece_of[static_cast<size_t>(seed)] >= 0) continue;
    Piece piece;
    const auto id = static_cast<int32_t>(pieces.size());
    piece.variables.push_back(seed);
    piece_of[static_cast<size_t>(seed)] = id;
    for (size_t i = 0; i < piece.variables.size(); ++i) {
      const int32_t v = piece.variables[i];
      const auto at = static_cast<size_t>(v);
      const ReducedVariable& variable = problem_.variables()[at];
      piece.cost_change += variable.costs[static_cast<size_t>(other[at])] -
                           variable.costs[static_cast<size_t>(labels_[at])];
      const auto visit = [&](int32_t e, bool is_later) {
        const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
        const int32_t w = is_later ? edge.v : edge.u;
        const auto w_at = static_cast<size_t>(w);
        const bool both = differs(w);
        if (both && piece_of[w_at] < 0) {
          piece_of[w_at] = id;
          piece.variables.push_back(w);
        }
        if (both && !is_later) return;  // counted from its earlier end
        const Matrix& table = problem_.table(edge.table);
        const auto u_at = static_cast<size_t>(edge.u);
        const auto v_at = static_cast<size_t>(edge.v);
        const int32_t u_label = differs(edge.u) ? other[u_at] : labels_[u_at];
        const int32_t v_label = differs(edge.v) ? other[v_at] : labels_[v_at];
        piece.cost_change += table.at(u_label, v_label) - table.at(labels_[u_at], labels_[v_at]);
      };
      for (int32_t e : variable.edges_to_later) visit(e, true);
      for (int32_t e : variable.edges_to_earlier) visit(e, false);
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

void LocalSearch::movePiece(const Piece& piece, const std::vector<int32_t>& labels) {
  for (int32_t v : piece.variables) move(v, labels[static_cast<size_t>(v)]);
}

bool LocalSearch::adopt(const std::vector<int32_t>& other) {
  std::vector<Piece> pieces = piecesOf(other);
  std::erase_if(pieces, [](const Piece& piece) { return !(piece.cost_change < 0.0); });
  if (pieces.empty()) return false;
  // Gain per byte added at the row that is fullest once everything is taken; free pieces first.
  const std::vector<int32_t> before = labels_;
  for (const Piece& piece : pieces) movePiece(piece, other);
  bool changed = false;
  if (loads_.maximum() <= 0) return true;
  const int32_t row = loads_.worstRow();
  for (const Piece& piece : pieces) movePiece(piece, before);
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < pieces.size(); ++i) {
    int64_t added = 0;
    for (int32_t v : pieces[i].variables) {
      const MemorySegment* segment = segmentAt(problem_.variables()[static_cast<size_t>(v)], row);
      if (!segment) continue;
      added += segment->excess_bytes[static_cast<size_t>(other[static_cast<size_t>(v)])] -
               segment->excess_bytes[static_cast<size_t>(labels_[static_cast<size_t>(v)])];
    }
    const double price = added > 0 ? pieces[i].cost_change / static_cast<double>(added)
                                   : pieces[i].cost_change * 1e3;
    order.emplace_back(price, i);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [price, i] : order) {
    movePiece(pieces[i], other);
    if (loads_.maximum() <= 0) {
      changed = true;
    } else {
      movePiece(pieces[i], before);
    }
  }
  return changed;
}

bool LocalSearch::retreat(const std::vector<int32_t>& other) {
  while (loads_.maximum() > 0) {
    if (stopped()) return false;
    const int32_t row = loads_.worstRow();
    const auto excess = static_cast<double>(loads_.maximum());
    std::vector<Piece> pieces = piecesOf(other);
    double best_price = kInfinity;
    const Piece* best = nullptr;
    for (const Piece& piece : pieces) {
      int64_t freed = 0;
      for (int32_t v : piece.variables) {
        const MemorySegment* segment = segmentAt(problem_.variables()[static_cast<size_t>(v)], row);
        if (!segment) continue;
        freed += segment->excess_bytes[static_cast<size_t>(labels_[static_cast<size_t>(v)])] -
                 segment->excess_bytes[static_cast<size_t>(other[static_cast<size_t>(v)])];
      }
      if (freed <= 0) continue;
      const double price = piece.cost_change / std::min(static_cast<double>(freed), excess);
      if (price < best_price) {
        best_price = price;
        best = &piece;
      }
    }
    if (!best) return false;
    movePiece(*best, other);
  }
  return true;
}

}  // namespace shardwright
