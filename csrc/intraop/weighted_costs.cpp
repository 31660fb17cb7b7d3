#include "intraop/weighted_costs.h"

#include <algorithm>
#include <cmath>

namespace shardwright {

std::optional<WeightedCosts> weightCosts(const ReducedProblem& problem,
                                         const std::vector<double>& multipliers) {
  WeightedCosts weighted;
  weighted.unary.reserve(problem.variables().size());
  double total = 0.0;
  for (double multiplier : multipliers) total += multiplier;
  // Multipliers become multiples of a power of two small enough to matter and large enough that all
  // prefix sums are exact.
  const double unit =
      total > 0.0 ? std::ldexp(1.0, static_cast<int>(std::ceil(std::log2(total))) - 50) : 1.0;
  std::vector<double> prefix(multipliers.size() + 1, 0.0);
  double constant = 0.0;
  double constant_magnitude = 0.0;
  for (size_t row = 0; row < multipliers.size(); ++row) {
    const double multiplier = std::floor(multipliers[row] / unit) * unit;
    prefix[row + 1] = prefix[row] + multiplier;
    weighted.multipliers.push_back(multiplier);
    const double product = multiplier * static_cast<double>(problem.slackBytes()[row]);
    constant += product;
    constant_magnitude += std::abs(product);
  }
  const double quantum = problem.quantum();
  // Covers the rounding of every row's product and sum, 2^-53 each of at most the magnitude.
  const double rounding = (static_cast<double>(multipliers.size()) + 1000.0) * 2.3e-16;
  weighted.constant = std::ceil((constant + rounding * constant_magnitude) / quantum) * quantum;
  double magnitude = 0.0;
  for (const ReducedVariable& variable : problem.variables()) {
    std::vector<double> costs = variable.costs;
    double largest = 0.0;
    for (const MemorySegment& segment : variable.memory) {
      const double price = prefix[static_cast<size_t>(segment.row_end)] -
                           prefix[static_cast<size_t>(segment.row_begin)];
      if (price == 0.0) continue;
      for (size_t a = 0; a < costs.size(); ++a) {
        const double product = price * static_cast<double>(segment.excess_bytes[a]);
        const double rounded = std::floor(product * (1.0 - 1e-15) / quantum) * quantum;
        if (costs[a] != kInfinity) largest = std::max(largest, rounded);
        costs[a] += rounded;
      }
    }
    magnitude += largest;
    weighted.unary.push_back(std::move(costs));
  }
  // Costs themselves take at most a quarter of the 2^53 quanta that are exact.
  if (magnitude > quantum * 4503599627370496.0 ||
      weighted.constant > quantum * 4503599627370496.0) {
    return std::nullopt;
  }
  return weighted;
}

}  // namespace shardwright
