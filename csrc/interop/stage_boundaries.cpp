#include "interop/stage_boundaries.h"

#include <cmath>
#include <map>
#include <utility>

namespace shardwright {
namespace {

class BoundaryClassifier {
 public:
  explicit BoundaryClassifier(const StageProblem& problem)
      : problem_(problem),
        num_ports_(problem.submeshes.size() * static_cast<std::size_t>(problem.num_specs)) {}

  // One class on both sides, nothing to pay: the outer ends and free boundaries.
  BoundaryClasses open() const {
    const std::vector<std::int32_t> one(num_ports_, 0);
    return {one, one, {Crossing{}}};
  }

  BoundaryClasses at(int layer) const {
    if (problem_.boundaries.empty() || layer == 0 || layer == problem_.num_layers) return open();
    const Boundary& boundary = problem_.boundaries[static_cast<std::size_t>(layer)];
    if (boundary.time.size() == 1) {
      BoundaryClasses classes = open();
      classes.crossings[0] = crossing(boundary, 0, 0);
      if (std::isinf(boundary.time[0])) classes.crossings.clear();
      return classes;
    }
    BoundaryClasses classes;
    std::map<std::vector<double>, std::int32_t> rows;
    std::map<std::vector<double>, std::int32_t> columns;
    std::vector<std::size_t> row_port;
    std::vector<std::size_t> column_port;
    for (std::size_t p = 0; p < num_ports_; ++p) {
      classes.before.push_back(classOf(rows, costs(boundary, p, true), p, row_port));
      classes.after.push_back(classOf(columns, costs(boundary, p, false), p, column_port));
    }
    for (std::size_t b = 0; b < row_port.size(); ++b) {
      for (std::size_t a = 0; a < column_port.size(); ++a) {
        Crossing pair = crossing(boundary, row_port[b], column_port[a]);
        pair.before = static_cast<std::int32_t>(b);
        pair.after = static_cast<std::int32_t>(a);
        if (!std::isinf(pair.time) && !std::isinf(pair.link_time)) {
          classes.crossings.push_back(pair);
        }
      }
    }
    return classes;
  }

 private:
  static std::int32_t classOf(std::map<std::vector<double>, std::int32_t>& known,
                              std::vector<double> costs, std::size_t port,
                              std::vector<std::size_t>& first_port) {
    const auto next = static_cast<std::int32_t>(known.size());
    const auto [found, is_new] = known.emplace(std::move(costs), next);
    if (is_new) first_port.push_back(port);
    return found->second;
  }

  Crossing crossing(const Boundary& boundary, std::size_t before, std::size_t after) const {
    const std::size_t entry = boundary.time.size() == 1 ? 0 : before * num_ports_ + after;
    const double time = boundary.time[entry];
    return {0, 0, time, boundary.link_time.empty() ? time / 2 : boundary.link_time[entry]};
  }

  std::vector<double> costs(const Boundary& boundary, std::size_t port, bool is_before) const {
    std::vector<double> values;
    const std::vector<double>& waits = is_before ? boundary.exit_wait : boundary.entry_wait;
    if (!waits.empty()) values.push_back(waits[port]);
    for (std::size_t other = 0; other < num_ports_; ++other) {
      const Crossing pair =
          is_before ? crossing(boundary, port, other) : crossing(boundary, other, port);
      values.push_back(pair.time);
      values.push_back(pair.link_time);
    }
    return values;
  }

  const StageProblem& problem_;
  std::size_t num_ports_;
};

}  // namespace

BoundaryClasses classifyBoundary(const StageProblem& problem, int layer) {
  return BoundaryClassifier(problem).at(layer);
}

}  // namespace shardwright
