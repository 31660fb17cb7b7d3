#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "intraop/presolve.h"

namespace shardwright {
namespace {

// Swap-cost tables take rows^2 entries and rows^2 * cols steps; past this they cost more than they
// save.
constexpr int32_t kMaxValues = 400;
constexpr double kMaxSwapWork = 3e7;

class DominanceFilter {
 public:
  DominanceFilter(Reduction& reduction, const MemoryState& memory)
      : reduction_(reduction), memory_(memory) {}

  // Values of v to keep, ascending.
  std::vector<int32_t> undominated(int32_t v) {
    const Variable& variable = reduction_.variable(v);
    const auto n = variable.costs.size();
    // swap[a, b]: the most it can cost to use b in place of a.
    std::vector<double> swap(n * n);
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) swap[a * n + b] = variable.costs[b] - variable.costs[a];
    }
    for (int32_t e : variable.edges) {
      const std::vector<double>& edge_swap =
          reduction_.pool().rowSwapCosts(reduction_.tableFrom(e, v));
      for (size_t i = 0; i < swap.size(); ++i) swap[i] += edge_swap[i];
    }
    std::vector<char> kept(n, 1);
    const auto& segments = memory_.segments[static_cast<size_t>(v)];
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        if (a == b || !kept[b] || !(swap[a * n + b] <= 0.0)) continue;
        const bool fits =
            std::all_of(segments.begin(), segments.end(), [&](const MemorySegment& segment) {
              return segment.excess_bytes[b] <= segment.excess_bytes[a];
            });
        if (fits) {
          kept[a] = 0;
          break;
        }
      }
    }
    std::vector<int32_t> keep;
    for (size_t a = 0; a < n; ++a) {
      if (kept[a]) keep.push_back(static_cast<int32_t>(a));
    }
    return keep;
  }

  bool affordable(int32_t v) {
    const Variable& variable = reduction_.variable(v);
    const double n = variable.numValues();
    if (variable.numValues() > kMaxValues) return false;
    for (int32_t e : variable.edges) {
      const double cols = reduction_.variable(reduction_.edge(e).other(v)).numValues();
      if (n * n * cols > kMaxSwapWork) return false;
    }
    return true;
  }

 private:
  Reduction& reduction_;
  const MemoryState& memory_;
};

}  // namespace

bool removeDominated(Reduction& reduction, const MemoryLayout& layout,
                     const std::vector<int32_t>& kept_nodes) {
  const MemoryState memory = measureMemory(reduction, layout);
  DominanceFilter filter(reduction, memory);
  bool changed = false;
  for (size_t v = 0; v < reduction.variables().size(); ++v) {
    const auto id = static_cast<int32_t>(v);
    if (!reduction.variable(id).alive || reduction.variable(id).numValues() < 2) continue;
    if (std::find(kept_nodes.begin(), kept_nodes.end(), id) != kept_nodes.end()) continue;
    if (!filter.affordable(id)) continue;
    const std::vector<int32_t> keep = filter.undominated(id);
    if (static_cast<int32_t>(keep.size()) == reduction.variable(id).numValues()) continue;
    reduction.keepValues(id, keep);
    changed = true;
  }
  return changed;
}

}  // namespace shardwright
