#include "intraop/neighbourhood_search.h"

#include <algorithm>
#include <utility>

#include "intraop/elimination.h"
#include "intraop/lagrangian.h"
#include "intraop/local_search.h"

namespace shardwright {
namespace {

constexpr double kMaxBlockWork = 4e6;
constexpr double kSmallBlockWork = 4e5;
constexpr double kMaxBlockSize = 400.0;
constexpr int kMaxEvaluations = 14;

}  // namespace

NeighbourhoodSearch::NeighbourhoodSearch(const ReducedProblem& problem, std::vector<int32_t> labels,
                                         WorkMeter& meter)
    : problem_(problem),
      labels_(std::move(labels)),
      cost_(problem.costOf(labels_)),
      meter_(meter),
      visited_(problem.variables().size(), 0) {}

int32_t NeighbourhoodSearch::below(int32_t bound) {
  return static_cast<int32_t>(random_() % static_cast<uint64_t>(bound));
}

// Breadth first from the seed, variables with very many neighbours left out.
void NeighbourhoodSearch::growFrom(int32_t seed, size_t size, std::vector<int32_t>& block) {
  constexpr size_t kHubDegree = 64;
  const size_t begin = block.size();
  const auto take = [&](int32_t v) {
    uint64_t& seen = visited_[static_cast<size_t>(v)];
    const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(v)];
    if (seen == visit_ ||
        variable.edges_to_later.size() + variable.edges_to_earlier.size() > kHubDegree) {
      return;
    }
    seen = visit_;
    block.push_back(v);
  };
  take(seed);
  for (size_t i = begin; i < block.size() && block.size() < begin + size; ++i) {
    const ReducedVariable& variable = problem_.variables()[static_cast<size_t>(block[i])];
    for (int32_t e : variable.edges_to_later) {
      take(problem_.edges()[static_cast<size_t>(e)].v);
    }
    for (int32_t e : variable.edges_to_earlier) {
      take(problem_.edges()[static_cast<size_t>(e)].u);
    }
  }
}

std::vector<int32_t> NeighbourhoodSearch::pickBlock() {
  ++visit_;
  std::vector<int32_t> block;
  // Two blocks at once can trade memory between distant places.
  const int num_seeds = 1 + below(2);
  const auto size = static_cast<size_t>(block_size_) / static_cast<size_t>(num_seeds) + 1;
  for (int i = 0; i < num_seeds; ++i) growFrom(below(problem_.numVariables()), size, block);
  std::sort(block.begin(), block.end());
  return block;
}

bool NeighbourhoodSearch::step(const std::function<bool()>& stop) {
  const std::vector<int32_t> block = pickBlock();
  if (block.empty()) return false;
  const ReducedProblem part(problem_, labels_, block);
  meter_.addLookups(static_cast<double>(problem_.numVariables() + problem_.numRows()));
  meter_.addSteps(30.0 + 2.0 * static_cast<double>(block.size()));
  meter_.addMessages(part.numEntries());
  const Elimination elimination(part, {kMaxBlockWork, 1e9});
  if (!elimination.fits()) {
    block_size_ = std::max(4.0, block_size_ * 0.9);
    return false;
  }
  if (elimination.work() < kSmallBlockWork) {
    block_size_ = std::min(kMaxBlockSize, block_size_ * 1.05);
  }
  std::vector<int32_t> present;
  for (int32_t v : block) present.push_back(labels_[static_cast<size_t>(v)]);
  double best_cost = part.costOf(present);
  const double cost_before = best_cost;
  std::vector<int32_t> best = present;
  const auto offer = [&](const LocalSearch& search) {
    if (!search.fits()) return;
    const double cost = search.cost();
    if (cost < best_cost) {
      best_cost = cost;
      best = search.labels();
    }
  };
  LagrangianOptions options;
  options.max_evaluations = kMaxEvaluations;
  options.stop = stop;
  options.on_labels = [&](const std::vector<int32_t>& labels) {
    LocalSearch search(part, labels, meter_, stop);
    if (search.fits()) {
      offer(search);
      return;
    }
    LocalSearch retreating(part, labels, meter_, stop);
    if (retreating.retreat(best)) {
      retreating.improve(true);
      offer(retreating);
    }
    LocalSearch adopting(part, best, meter_, stop);
    if (adopting.adopt(labels)) {
      adopting.improve(true);
      offer(adopting);
    }
    if (search.repair(200)) {
      search.improve(true);
      offer(search);
    }
  };
  const LagrangianResult result = maximiseLagrangian(part, elimination, options, meter_);
  // Entries of short rows take up to ten times as long as those of long ones.
  double num_values = 0.0;
  for (const ReducedVariable& variable : part.variables()) num_values += variable.numValues();
  const double overhead = std::min(9.0, 80.0 * static_cast<double>(block.size()) / num_values);
  meter_.addRows(overhead * result.num_evaluations * elimination.work());
  if (!(best_cost < cost_before)) return false;
  for (size_t i = 0; i < block.size(); ++i) labels_[static_cast<size_t>(block[i])] = best[i];
  cost_ = problem_.costOf(labels_);
  return true;
}

}  // namespace shardwright
