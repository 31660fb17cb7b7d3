// Large-neighbourhood search: frees one or two connected blocks of variables around the present
// choice and solves the block by exact elimination with memory priced in.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "intraop/reduced_problem.h"
#include "intraop/work_meter.h"

namespace shardwright {

class NeighbourhoodSearch {
 public:
  // labels must fit the memory rows. problem and meter must outlive this.
  NeighbourhoodSearch(const ReducedProblem& problem, std::vector<int32_t> labels, WorkMeter& meter);

  const std::vector<int32_t>& labels() const { return labels_; }
  double cost() const { return cost_; }
  // One block; true when the cost went down.
  bool step(const std::function<bool()>& stop);

 private:
  std::vector<int32_t> pickBlock();
  void growFrom(int32_t seed, size_t size, std::vector<int32_t>& block);
  int32_t below(int32_t bound);

  const ReducedProblem& problem_;
  std::vector<int32_t> labels_;
  double cost_;
  WorkMeter& meter_;
  double block_size_ = 24.0;  // follows what elimination can take
  std::mt19937_64 random_{20260101};
  std::vector<uint64_t> visited_;
  uint64_t visit_ = 0;
};

}  // namespace shardwright
