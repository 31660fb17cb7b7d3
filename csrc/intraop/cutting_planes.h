// Master problem of the memory multipliers: the best multipliers according to the choices seen so
// far. Source: Kelley's cutting-plane method for the Lagrangian dual, in its Dantzig-Wolfe form.
#pragma once

#include <cstddef>
#include <vector>

namespace shardwright {

class CuttingPlanes {
 public:
  explicit CuttingPlanes(size_t num_rows) : upper_(num_rows, 0.0) {}

  // A choice with its cost and its overload (bytes above the slack) per row.
  void addPoint(double cost, std::vector<double> overload);
  // Multipliers of the row stay within [0, upper].
  void setUpper(size_t row, double upper) { upper_[row] = upper; }
  double upper(size_t row) const { return upper_[row]; }
  size_t numPoints() const { return costs_.size(); }

  struct Solution {
    double value = 0.0;               // upper bound on the dual within the box
    std::vector<double> multipliers;  // per row
    std::vector<double> weights;      // per point, a convex combination
  };
  // Maximises min over points of cost + multipliers . overload.
  Solution solve() const;

 private:
  std::vector<double> upper_;
  std::vector<double> costs_;
  std::vector<std::vector<double>> overloads_;
};

}  // namespace shardwright
