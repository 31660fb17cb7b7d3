#include "intraop/local_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

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
      meter_(meter),
      stop_(std::move(stop)) {}

double LocalSearch::moveCost(int32_t v, int32_t value) const {
  const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(v)];
  const int32_t present = labels_[static_cast<size_t>(v)];
  meter_.addLookups(
      1.0 + static_cast<double>(variable.edges_to_later.size() + variable.edges_to_earlier.size()));
  double change =
      variable.costs[static_cast<size_t>(value)] - variable.costs[static_cast<size_t>(present)];
  for (int32_t e : variable.edges_to_later) {
    const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
    const Matrix& table = problem_.table(edge.table);
    const int32_t other = labels_[static_cast<size_t>(edge.v)];
    change += table.at(value, other) - table.at(present, other);
  }
  for (int32_t e : variable.edges_to_earlier) {
    const ReducedEdge& edge = problem_.edges()[static_cast<size_t>(e)];
    const double* row = problem_.table(edge.table).row(labels_[static_cast<size_t>(edge.u)]);
    change += row[value] - row[present];
  }
  return change;
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
  for (const MemorySegment& segment : problem_.variables()[static_cast<size_t>(v)].memory) {
    const int64_t change = segment.excess_bytes[static_cast<size_t>(value)] -
                           segment.excess_bytes[static_cast<size_t>(present)];
    if (change != 0) loads_.add(segment.row_begin, segment.row_end, change);
  }
  labels_[static_cast<size_t>(v)] = value;
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
      const int64_t held =
          segment->excess_bytes[static_cast<size_t>(labels_[static_cast<size_t>(v)])];
      for (int32_t a = 0; a < variable.numValues(); ++a) {
        const auto freed =
            static_cast<double>(held - segment->excess_bytes[static_cast<size_t>(a)]);
        if (freed <= 0.0) continue;
        const double change = moveCost(v, a);
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
    if (v % 256 == 0 && stopped()) return false;
    double best_change = 0.0;
    int32_t best_value = -1;
    const int32_t n = problem_.variables()[static_cast<size_t>(v)].numValues();
    for (int32_t a = 0; a < n; ++a) {
      if (a == labels_[static_cast<size_t>(v)]) continue;
      const double change = moveCost(v, a);
      if (change < best_change && moveFits(v, a)) {
        best_change = change;
        best_value = a;
      }
    }
    if (best_value >= 0) {
      move(v, best_value);
      changed = true;
    }
  }
  return changed;
}

bool LocalSearch::improvePairs() {
  bool changed = false;
  size_t count = 0;
  for (const ReducedEdge& edge : problem_.edges()) {
    if (++count % 64 == 0 && stopped()) return false;
    if (improvePair(edge)) changed = true;
  }
  return changed;
}

bool LocalSearch::improvePair(const ReducedEdge& edge) {
  const Matrix& table = problem_.table(edge.table);
  if (static_cast<double>(table.costs.size()) > kMaxPairEntries) return false;
  meter_.addRows(static_cast<double>(table.costs.size()));
  meter_.addLookups(4.0 * (table.num_rows + table.num_cols));
  const int32_t present_u = labels_[static_cast<size_t>(edge.u)];
  const int32_t present_v = labels_[static_cast<size_t>(edge.v)];
  const double present = table.at(present_u, present_v);
  std::vector<double> change_v(static_cast<size_t>(table.num_cols), kInfinity);
  // What each end costs on its own, without the edge between them.
  const auto alone = [&](int32_t variable, int32_t value) {
    const ReducedVariable& ends = problem_.variables()[static_cast<size_t>(variable)];
    const int32_t now = labels_[static_cast<size_t>(variable)];
    double change = ends.costs[static_cast<size_t>(value)] - ends.costs[static_cast<size_t>(now)];
    for (int32_t e : ends.edges_to_later) {
      const ReducedEdge& other = problem_.edges()[static_cast<size_t>(e)];
      if (&other == &edge) continue;
      const Matrix& costs = problem_.table(other.table);
      const int32_t label = labels_[static_cast<size_t>(other.v)];
      change += costs.at(value, label) - costs.at(now, label);
    }
    for (int32_t e : ends.edges_to_earlier) {
      const ReducedEdge& other = problem_.edges()[static_cast<size_t>(e)];
      if (&other == &edge) continue;
      const double* row = problem_.table(other.table).row(labels_[static_cast<size_t>(other.u)]);
      change += row[value] - row[now];
    }
    return change;
  };
  for (int32_t b = 0; b < table.num_cols; ++b) {
    change_v[static_cast<size_t>(b)] = alone(edge.v, b);
  }
  std::vector<std::tuple<double, int32_t, int32_t>> candidates;
  for (int32_t a = 0; a < table.num_rows; ++a) {
    if (a == present_u) continue;
    const double change_u = alone(edge.u, a);
    if (!(change_u < kInfinity)) continue;
    for (int32_t b = 0; b < table.num_cols; ++b) {
      if (b == present_v) continue;
      const double change = change_u + change_v[static_cast<size_t>(b)] + table.at(a, b) - present;
      if (change < 0.0) candidates.emplace_back(change, a, b);
    }
  }
  const size_t tries = std::min(kMaxPairTries, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(tries),
                    candidates.end());
  for (size_t i = 0; i < tries; ++i) {
    move(edge.u, std::get<1>(candidates[i]));
    move(edge.v, std::get<2>(candidates[i]));
    if (loads_.maximum() <= 0) return true;
    move(edge.u, present_u);
    move(edge.v, present_v);
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
