#include "interop/layer_clustering.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace shardwright {
namespace {

constexpr std::int64_t kUnreachable = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void reject(const std::string& value, const std::string& advice) {
  throw Error(ErrorKind::kProblem, "E222", "operations cannot be cut into layers.",
              {.values = {value}, .advice = advice});
}

void checkOps(const std::vector<ClusterOp>& ops, const std::vector<ClusterValue>& values) {
  if (ops.empty()) reject("no operations", "give at least one");
  for (const ClusterValue& value : values) {
    if (value.bytes < 0 || value.producer < -1 ||
        value.producer >= static_cast<std::int32_t>(ops.size())) {
      reject("a value with producer " + std::to_string(value.producer) + " and " +
                 std::to_string(value.bytes) + " bytes",
             "producers are operations, or -1; bytes are 0 or more");
    }
  }
  for (std::size_t k = 0; k < ops.size(); ++k) {
    const std::string name = "operation " + std::to_string(k);
    if (ops[k].flops < 0) reject(name + ": negative FLOPs", "give 0 or more");
    for (const std::int32_t operand : ops[k].operands) {
      if (operand < 0 || static_cast<std::size_t>(operand) >= values.size() ||
          values[static_cast<std::size_t>(operand)].producer >= static_cast<std::int32_t>(k)) {
        reject(name + " reads value " + std::to_string(operand),
               "operands are values that earlier operations produce");
      }
    }
  }
}

// Operations that may form one layer ending at `end`: begins from `end` down to `lowest`, and the
// bytes that enter each of them.
struct Window {
  std::int32_t lowest = 0;
  // Of begin `end - i` at position i; kUnreachable for a layer that may not be.
  std::vector<std::int64_t> entering;

  std::int64_t enteringAt(std::int32_t begin, std::int32_t end) const {
    return entering[static_cast<std::size_t>(end - begin)];
  }
};

class Clustering {
 public:
  Clustering(const std::vector<ClusterOp>& ops, const std::vector<ClusterValue>& values,
             const ClusterOptions& options)
      : ops_(ops),
        values_(values),
        options_(options),
        num_ops_(static_cast<std::int32_t>(ops.size())),
        forced_(ops.size() + 1, false) {
    flops_before_.push_back(0);
    for (const ClusterOp& op : ops)
      flops_before_.push_back(checkedAdd(flops_before_.back(), op.flops));
    forced_[0] = true;
    for (const std::int32_t begin : options.forced_begins) {
      if (begin < 0 || begin >= num_ops_) {
        reject("a mark in front of operation " + std::to_string(begin) + " of " +
                   std::to_string(num_ops_),
               "mark an operation of the list");
      }
      forced_[static_cast<std::size_t>(begin)] = true;
    }
  }

  LayerClustering run() {
    const auto num_forced = static_cast<int>(std::count(forced_.begin(), forced_.end() - 1, true));
    if (!options_.num_layers && num_forced > 1) return describe(forcedBegins());
    if (options_.num_layers) {
      const int num_layers = *options_.num_layers;
      if (num_layers < num_forced || num_layers > num_ops_) {
        reject(std::to_string(num_layers) + " layers of " + std::to_string(num_ops_) +
                   " operations with " + std::to_string(num_forced - 1) + " marks",
               "at least one operation per layer, and a layer per mark");
      }
      std::vector<std::int32_t> begins = cut(num_layers);
      if (begins.empty()) {
        reject("no cut into " + std::to_string(num_layers) + " layers bounds each by " +
                   std::to_string(1 + options_.flop_tolerance) + " times the average FLOPs",
               "fewer layers, or a larger tolerance");
      }
      return describe(std::move(begins));
    }
    return describe(foundBegins());
  }

 private:
  std::vector<std::int32_t> forcedBegins() const {
    std::vector<std::int32_t> begins;
    for (std::int32_t k = 0; k < num_ops_; ++k) {
      if (forced_[static_cast<std::size_t>(k)]) begins.push_back(k);
    }
    return begins;
  }

  // A layer begins at every narrow place; where those are too many at every second, third, ... one,
  // so that layers which repeat still do.
  std::vector<std::int32_t> foundBegins() const {
    const std::vector<std::int32_t> places = narrowPlaces();
    const auto most = static_cast<std::size_t>(options_.most_layers);
    const std::size_t stride = (places.size() + most) / most;  // (layers - 1) / most + 1
    std::vector<std::int32_t> begins = {0};
    for (std::size_t i = stride - 1; i < places.size(); i += stride) begins.push_back(places[i]);
    return begins;
  }

  std::int64_t flopsOf(std::int32_t begin, std::int32_t end) const {
    return flops_before_[static_cast<std::size_t>(end)] -
           flops_before_[static_cast<std::size_t>(begin)];
  }

  // Bytes made before each operation and read by it or later ones.
  std::vector<std::int64_t> crossingBytes() const {
    std::vector<std::int32_t> last_use(values_.size(), -1);
    for (std::int32_t k = 0; k < num_ops_; ++k) {
      for (const std::int32_t v : ops_[static_cast<std::size_t>(k)].operands) {
        last_use[static_cast<std::size_t>(v)] = k;
      }
    }
    std::vector<std::int64_t> change(ops_.size() + 2, 0);
    for (std::size_t v = 0; v < values_.size(); ++v) {
      if (values_[v].producer < 0 || last_use[v] < 0) continue;
      change[static_cast<std::size_t>(values_[v].producer) + 1] += values_[v].bytes;
      change[static_cast<std::size_t>(last_use[v]) + 1] -= values_[v].bytes;
    }
    std::vector<std::int64_t> crossing(ops_.size(), 0);
    std::int64_t now = 0;
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      now += change[k];
      crossing[k] = now;
    }
    return crossing;
  }

  // Between two heavy operations: the last operation in front of which fewest bytes cross.
  struct Place {
    std::int32_t begin = 0;
    std::int64_t width = kUnreachable;
  };

  // First operations after the narrow places.
  std::vector<std::int32_t> narrowPlaces() const {
    const std::vector<std::int64_t> crossing = crossingBytes();
    std::vector<Place> places;  // the first one lies in front of all heavy operations
    Place place;
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      if (k > 0 && crossing[k] <= place.width) {
        place = {static_cast<std::int32_t>(k), crossing[k]};
      }
      if (!isHeavy(static_cast<std::int32_t>(k))) continue;
      places.push_back(place);
      place = {};
    }
    std::vector<std::int32_t> begins;
    for (std::size_t i = 1; i < places.size(); ++i) {
      const bool before = places[i - 1].width >= places[i].width;
      const bool after = i + 1 == places.size() || places[i + 1].width >= places[i].width;
      if (before && after) begins.push_back(places[i].begin);
    }
    return begins;
  }

  // Whether it has at least the average FLOPs.
  bool isHeavy(std::int32_t op) const {
    return static_cast<double>(ops_[static_cast<std::size_t>(op)].flops) * num_ops_ >=
           static_cast<double>(flops_before_.back());
  }

  // The most FLOPs of one of `num_layers` layers.
  double flopBound(int num_layers) const {
    return (1 + options_.flop_tolerance) * static_cast<double>(flops_before_.back()) / num_layers;
  }

  // For each last operation, the begins a layer may have, by FLOPs, heavy operations and marks.
  std::vector<Window> windows(int num_layers, bool needs_heavy) const {
    const double bound = flopBound(num_layers);
    std::vector<Window> result(ops_.size());
    // By value: the last `end` for which it was counted as read inside the layer.
    std::vector<std::int32_t> read_for(values_.size(), -1);
    std::vector<std::vector<std::int32_t>> made_by(ops_.size());
    for (std::size_t v = 0; v < values_.size(); ++v) {
      if (values_[v].producer >= 0) {
        made_by[static_cast<std::size_t>(values_[v].producer)].push_back(
            static_cast<std::int32_t>(v));
      }
    }
    for (std::int32_t end = 0; end < num_ops_; ++end) {
      Window& window = result[static_cast<std::size_t>(end)];
      std::int64_t entering = 0;
      int num_heavy = 0;
      for (std::int32_t begin = end; begin >= 0; --begin) {
        num_heavy += isHeavy(begin) ? 1 : 0;
        if (static_cast<double>(flopsOf(begin, end + 1)) > bound && num_heavy > 1) break;
        for (const std::int32_t v : made_by[static_cast<std::size_t>(begin)]) {
          if (read_for[static_cast<std::size_t>(v)] == end) {
            entering -= values_[static_cast<std::size_t>(v)].bytes;
          }
        }
        for (const std::int32_t v : ops_[static_cast<std::size_t>(begin)].operands) {
          std::int32_t& read = read_for[static_cast<std::size_t>(v)];
          if (read == end) continue;
          read = end;
          const ClusterValue& value = values_[static_cast<std::size_t>(v)];
          if (value.producer >= 0) entering = checkedAdd(entering, value.bytes);
        }
        window.entering.push_back(needs_heavy && num_heavy == 0 ? kUnreachable : entering);
        window.lowest = begin;
        if (forced_[static_cast<std::size_t>(begin)]) break;
      }
    }
    return result;
  }

  // Begins of the best cut, empty when none meets the bound.
  std::vector<std::int32_t> cut(int num_layers) const {
    for (const bool needs_heavy : {true, false}) {
      const std::vector<Window> windows_of = windows(num_layers, needs_heavy);
      const std::int64_t widest = fewestMostBytes(windows_of, num_layers);
      if (widest != kUnreachable) return cutWithin(windows_of, num_layers, widest);
    }
    return {};
  }

  // Least over all cuts of the most bytes that enter a layer.
  std::int64_t fewestMostBytes(const std::vector<Window>& windows_of, int num_layers) const {
    // best[k]: for the operations before k, in as many layers as rows were done.
    std::vector<std::int64_t> best(ops_.size() + 1, kUnreachable);
    best[0] = 0;
    for (int layer = 0; layer < num_layers; ++layer) {
      std::vector<std::int64_t> next(ops_.size() + 1, kUnreachable);
      for (std::int32_t end = 0; end < num_ops_; ++end) {
        const Window& window = windows_of[static_cast<std::size_t>(end)];
        for (std::size_t i = 0; i < window.entering.size(); ++i) {
          const std::int64_t before = best[static_cast<std::size_t>(end) - i];
          if (before == kUnreachable) continue;
          std::int64_t& to = next[static_cast<std::size_t>(end) + 1];
          to = std::min(to, std::max(before, window.entering[i]));
        }
      }
      best = std::move(next);
    }
    return best.back();
  }

  // Sum of entering bytes, then sum of squared FLOPs.
  struct Cost {
    std::int64_t bytes = kUnreachable;
    Int128 squares = 0;

    friend bool operator<(const Cost& a, const Cost& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.squares < b.squares;
    }
  };

  // The best cut among those whose layers are entered by at most `widest` bytes.
  std::vector<std::int32_t> cutWithin(const std::vector<Window>& windows_of, int num_layers,
                                      std::int64_t widest) const {
    const std::size_t width = ops_.size() + 1;
    std::vector<Cost> best(width);
    best[0] = {0, 0};
    std::vector<std::int32_t> begin_of(static_cast<std::size_t>(num_layers) * width, -1);
    for (int layer = 0; layer < num_layers; ++layer) {
      std::vector<Cost> next(width);
      for (std::int32_t end = 0; end < num_ops_; ++end) {
        const Window& window = windows_of[static_cast<std::size_t>(end)];
        const std::size_t to = static_cast<std::size_t>(end) + 1;
        for (std::size_t i = 0; i < window.entering.size(); ++i) {
          const std::int32_t begin = end - static_cast<std::int32_t>(i);
          const Cost& before = best[static_cast<std::size_t>(begin)];
          if (before.bytes == kUnreachable || window.entering[i] > widest) continue;
          const Int128 flops = flopsOf(begin, end + 1);
          const Cost cost{checkedAdd(before.bytes, window.entering[i]),
                          checkedAdd(before.squares, checkedMul(flops, flops))};
          if (cost < next[to]) {
            next[to] = cost;
            begin_of[static_cast<std::size_t>(layer) * width + to] = begin;
          }
        }
      }
      best = std::move(next);
    }
    std::vector<std::int32_t> begins;
    std::int32_t end = num_ops_;
    for (int layer = num_layers; layer-- > 0;) {
      end = begin_of[static_cast<std::size_t>(layer) * width + static_cast<std::size_t>(end)];
      begins.push_back(end);
    }
    std::ranges::reverse(begins);
    return begins;
  }

  LayerClustering describe(std::vector<std::int32_t> begins) const {
    LayerClustering result;
    std::map<std::vector<std::uint64_t>, std::int32_t> classes;
    for (std::size_t layer = 0; layer < begins.size(); ++layer) {
      const std::int32_t begin = begins[layer];
      const std::int32_t end = layer + 1 < begins.size() ? begins[layer + 1] : num_ops_;
      result.flops.push_back(flopsOf(begin, end));
      result.entering_bytes.push_back(enteringBytes(begin, end));
      const auto next = static_cast<std::int32_t>(classes.size());
      result.class_of_layer.push_back(
          classes.try_emplace(contentOf(begin, end), next).first->second);
    }
    result.begins = std::move(begins);
    return result;
  }

  std::int64_t enteringBytes(std::int32_t begin, std::int32_t end) const {
    std::vector<bool> seen(values_.size(), false);
    std::int64_t bytes = 0;
    for (std::int32_t k = begin; k < end; ++k) {
      for (const std::int32_t v : ops_[static_cast<std::size_t>(k)].operands) {
        const auto index = static_cast<std::size_t>(v);
        if (seen[index] || values_[index].producer < 0 || values_[index].producer >= begin)
          continue;
        seen[index] = true;
        bytes = checkedAdd(bytes, values_[index].bytes);
      }
    }
    return bytes;
  }

  // A layer's operations and how they are wired, in words that do not depend on where it stands:
  // inner values by the position of their producer, outer ones numbered as they are first read.
  std::vector<std::uint64_t> contentOf(std::int32_t begin, std::int32_t end) const {
    std::vector<std::uint64_t> words;
    std::map<std::int32_t, std::uint64_t> outer;
    std::map<std::int32_t, std::uint64_t> inner;  // outputs of one producer told apart
    for (std::int32_t k = begin; k < end; ++k) {
      const ClusterOp& op = ops_[static_cast<std::size_t>(k)];
      words.insert(words.end(), {op.signature, static_cast<std::uint64_t>(op.flops),
                                 static_cast<std::uint64_t>(op.operands.size())});
      for (const std::int32_t v : op.operands) {
        const ClusterValue& value = values_[static_cast<std::size_t>(v)];
        const bool is_inner = value.producer >= begin;
        auto& numbers = is_inner ? inner : outer;
        const std::uint64_t number = numbers.try_emplace(v, numbers.size()).first->second;
        const std::int32_t place = is_inner ? value.producer - begin : value.producer < 0 ? -2 : -1;
        words.insert(words.end(), {static_cast<std::uint64_t>(place), number,
                                   static_cast<std::uint64_t>(value.bytes)});
      }
    }
    return words;
  }

  const std::vector<ClusterOp>& ops_;
  const std::vector<ClusterValue>& values_;
  const ClusterOptions& options_;
  std::int32_t num_ops_;
  std::vector<bool> forced_;  // by operation: a layer must begin in front of it
  std::vector<std::int64_t> flops_before_;
};

}  // namespace

LayerClustering clusterLayers(const std::vector<ClusterOp>& ops,
                              const std::vector<ClusterValue>& values,
                              const ClusterOptions& options) {
  checkOps(ops, values);
  if (!(options.flop_tolerance >= 0) || (options.num_layers && *options.num_layers < 1) ||
      options.most_layers < 1) {
    reject("tolerance " + std::to_string(options.flop_tolerance) + ", " +
               (options.num_layers ? std::to_string(*options.num_layers) : "any number of") +
               " layers",
           "a tolerance of 0 or more, at least one layer");
  }
  return Clustering(ops, values, options).run();
}

}  // namespace shardwright
