#include "intraop/memory_rows.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace shardwright {
namespace {

// Range minimum over slack, answered from overlapping power-of-two blocks.
class RangeMinimum {
 public:
  explicit RangeMinimum(const std::vector<int64_t>& values) {
    levels_.push_back(values);
    for (size_t width = 2; width <= values.size(); width *= 2) {
      const std::vector<int64_t>& below = levels_.back();
      std::vector<int64_t> level(values.size() - width + 1);
      for (size_t i = 0; i < level.size(); ++i) {
        level[i] = std::min(below[i], below[i + width / 2]);
      }
      levels_.push_back(std::move(level));
    }
  }
  int64_t operator()(int32_t begin, int32_t end) const {
    const auto length = static_cast<unsigned>(end - begin);
    const auto level = static_cast<size_t>(std::bit_width(length)) - 1;
    const std::vector<int64_t>& row = levels_[level];
    return std::min(row[static_cast<size_t>(begin)],
                    row[static_cast<size_t>(end) - (size_t{1} << level)]);
  }

 private:
  std::vector<std::vector<int64_t>> levels_;
};

// Index of the segment that covers a row, or -1.
int32_t segmentAt(const std::vector<MemorySegment>& segments, int32_t row) {
  auto it = std::upper_bound(
      segments.begin(), segments.end(), row,
      [](int32_t r, const MemorySegment& segment) { return r < segment.row_begin; });
  if (it == segments.begin()) return -1;
  --it;
  return row < it->row_end ? static_cast<int32_t>(it - segments.begin()) : -1;
}

// Builds a variable's step function over rows; the least of each step goes to load_change.
std::vector<MemorySegment> segmentsOf(const Reduction& reduction, const MemoryLayout& layout,
                                      const Variable& variable, std::vector<int64_t>& load_change) {
  struct Event {
    int32_t row;
    int32_t sign;
    const std::vector<int64_t>* bytes;
    const std::vector<int32_t>* strategies;
  };
  std::vector<Event> events;
  for (const Member& member : variable.members) {
    const ChoiceNode& node = reduction.problem().nodes()[static_cast<size_t>(member.node)];
    for (const MemoryLayout::Span& span : layout.spansOf(member.node)) {
      const std::vector<int64_t>* bytes = &node.memory[static_cast<size_t>(span.piece)].bytes;
      const std::vector<int32_t>* strategies = &reduction.pool().list(member.strategies);
      events.push_back({span.row_begin, 1, bytes, strategies});
      events.push_back({span.row_end, -1, bytes, strategies});
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.row < b.row; });
  std::vector<MemorySegment> segments;
  std::vector<int64_t> held(variable.costs.size(), 0);
  for (size_t i = 0; i < events.size();) {
    const int32_t row = events[i].row;
    for (; i < events.size() && events[i].row == row; ++i) {
      for (size_t a = 0; a < held.size(); ++a) {
        const auto s = static_cast<size_t>((*events[i].strategies)[a]);
        held[a] += events[i].sign * (*events[i].bytes)[s];
      }
    }
    if (i == events.size()) break;
    const int32_t next = events[i].row;
    const int64_t least = *std::min_element(held.begin(), held.end());
    load_change[static_cast<size_t>(row)] += least;
    load_change[static_cast<size_t>(next)] -= least;
    MemorySegment segment{row, next, held};
    for (int64_t& bytes : segment.excess_bytes) bytes -= least;
    if (segment.maxExcess() == 0) continue;
    if (!segments.empty() && segments.back().row_end == row &&
        segments.back().excess_bytes == segment.excess_bytes) {
      segments.back().row_end = next;
    } else {
      segments.push_back(std::move(segment));
    }
  }
  return segments;
}

}  // namespace

int64_t MemorySegment::maxExcess() const {
  return *std::max_element(excess_bytes.begin(), excess_bytes.end());
}

MemoryLayout::MemoryLayout(const Problem& problem) : spans_(problem.numNodes()) {
  if (!problem.memoryLimitBytes()) return;
  struct Event {
    int64_t time;
    bool is_begin;
  };
  std::vector<Event> events;
  const auto holds_bytes = [](const MemoryPiece& piece) {
    return !piece.interval.empty() && std::any_of(piece.bytes.begin(), piece.bytes.end(),
                                                  [](int64_t bytes) { return bytes > 0; });
  };
  for (const ChoiceNode& node : problem.nodes()) {
    for (const MemoryPiece& piece : node.memory) {
      if (!holds_bytes(piece)) continue;
      events.push_back({piece.interval.begin, true});
      events.push_back({piece.interval.end, false});
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.is_begin < b.is_begin;
  });
  // A live set is maximal exactly where the next thing to happen after a birth is a death.
  std::vector<int64_t> row_times;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    if (events[i].is_begin && !events[i + 1].is_begin) row_times.push_back(events[i].time);
  }
  num_rows_ = static_cast<int32_t>(row_times.size());
  const auto row_from = [&](int64_t time) {
    return static_cast<int32_t>(std::lower_bound(row_times.begin(), row_times.end(), time) -
                                row_times.begin());
  };
  for (size_t n = 0; n < problem.numNodes(); ++n) {
    const std::vector<MemoryPiece>& pieces = problem.nodes()[n].memory;
    for (size_t p = 0; p < pieces.size(); ++p) {
      if (!holds_bytes(pieces[p])) continue;
      const Span span{row_from(pieces[p].interval.begin), row_from(pieces[p].interval.end),
                      static_cast<int32_t>(p)};
      if (span.row_begin < span.row_end) spans_[n].push_back(span);
    }
  }
}

MemoryState measureMemory(const Reduction& reduction, const MemoryLayout& layout) {
  MemoryState state;
  state.segments.resize(reduction.variables().size());
  if (layout.numRows() == 0) return state;
  std::vector<int64_t> load_change(static_cast<size_t>(layout.numRows()) + 1, 0);
  for (size_t n = 0; n < reduction.problem().numNodes(); ++n) {
    const int32_t strategy = reduction.fixedStrategies()[n];
    if (strategy < 0) continue;
    for (const MemoryLayout::Span& span : layout.spansOf(static_cast<int32_t>(n))) {
      const int64_t bytes = reduction.problem()
                                .nodes()[n]
                                .memory[static_cast<size_t>(span.piece)]
                                .bytes[static_cast<size_t>(strategy)];
      load_change[static_cast<size_t>(span.row_begin)] += bytes;
      load_change[static_cast<size_t>(span.row_end)] -= bytes;
    }
  }
  for (size_t v = 0; v < reduction.variables().size(); ++v) {
    const Variable& variable = reduction.variables()[v];
    if (variable.alive) state.segments[v] = segmentsOf(reduction, layout, variable, load_change);
  }
  state.slack_bytes.resize(static_cast<size_t>(layout.numRows()));
  int64_t load = 0;
  for (size_t row = 0; row < state.slack_bytes.size(); ++row) {
    load += load_change[row];
    state.slack_bytes[row] = *reduction.problem().memoryLimitBytes() - load;
  }
  return state;
}

bool pruneByMemory(Reduction& reduction, const MemoryLayout& layout) {
  if (layout.numRows() == 0) return false;
  const MemoryState state = measureMemory(reduction, layout);
  if (*std::min_element(state.slack_bytes.begin(), state.slack_bytes.end()) < 0) {
    reduction.markInfeasible(InfeasibilityProof::kMemoryFloor);
    return true;
  }
  const RangeMinimum least_slack(state.slack_bytes);
  bool changed = false;
  std::vector<int32_t> keep;
  for (size_t v = 0; v < state.segments.size(); ++v) {
    if (state.segments[v].empty()) continue;
    std::vector<char> fits(reduction.variables()[v].costs.size(), 1);
    for (const MemorySegment& segment : state.segments[v]) {
      const int64_t slack = least_slack(segment.row_begin, segment.row_end);
      for (size_t a = 0; a < fits.size(); ++a) {
        if (segment.excess_bytes[a] > slack) fits[a] = 0;
      }
    }
    keep.clear();
    for (size_t a = 0; a < fits.size(); ++a) {
      if (fits[a]) keep.push_back(static_cast<int32_t>(a));
    }
    if (keep.size() == fits.size()) continue;
    reduction.keepValues(static_cast<int32_t>(v), keep);
    changed = true;
  }
  return changed;
}

std::vector<int32_t> bindingRows(const MemoryState& state) {
  const size_t num_rows = state.slack_bytes.size();
  if (num_rows == 0) return {};
  std::vector<int64_t> worst_change(num_rows + 1, 0);
  std::vector<std::vector<int32_t>> changing_at(num_rows + 1);  // row -> variables that step there
  for (size_t v = 0; v < state.segments.size(); ++v) {
    for (const MemorySegment& segment : state.segments[v]) {
      const int64_t most = segment.maxExcess();
      worst_change[static_cast<size_t>(segment.row_begin)] += most;
      worst_change[static_cast<size_t>(segment.row_end)] -= most;
      changing_at[static_cast<size_t>(segment.row_begin)].push_back(static_cast<int32_t>(v));
      changing_at[static_cast<size_t>(segment.row_end)].push_back(static_cast<int32_t>(v));
    }
  }
  // Row a is implied by row b when b leaves no more slack and every variable that changes between
  // them holds at least as much at b, value by value.
  constexpr size_t kMaxCompared = 4000;
  const auto implied_by = [&](size_t a, size_t b) {
    if (state.slack_bytes[a] < state.slack_bytes[b]) return false;
    size_t num_compared = 0;
    for (size_t row = std::min(a, b) + 1; row <= std::max(a, b); ++row) {
      num_compared += changing_at[row].size();
      if (num_compared > kMaxCompared) return false;
      for (int32_t v : changing_at[row]) {
        const auto& segments = state.segments[static_cast<size_t>(v)];
        const int32_t at_a = segmentAt(segments, static_cast<int32_t>(a));
        const int32_t at_b = segmentAt(segments, static_cast<int32_t>(b));
        if (at_a < 0 || at_a == at_b) continue;
        const auto& bytes_a = segments[static_cast<size_t>(at_a)].excess_bytes;
        for (size_t x = 0; x < bytes_a.size(); ++x) {
          const int64_t bytes_b =
              at_b < 0 ? 0 : segments[static_cast<size_t>(at_b)].excess_bytes[x];
          if (bytes_a[x] > bytes_b) return false;
        }
      }
    }
    return true;
  };
  std::vector<int32_t> rows;
  int64_t worst = 0;
  for (size_t row = 0; row < num_rows; ++row) {
    worst += worst_change[row];
    if (worst <= state.slack_bytes[row]) continue;
    bool implied = false;
    while (!rows.empty()) {
      const auto previous = static_cast<size_t>(rows.back());
      if (implied_by(previous, row)) {
        rows.pop_back();
        continue;
      }
      implied = implied_by(row, previous);
      break;
    }
    if (!implied) rows.push_back(static_cast<int32_t>(row));
  }
  return rows;
}

}  // namespace shardwright
