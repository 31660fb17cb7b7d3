// One solve of a ParetoElimination: entries that can matter, top down; their fronts, bottom up; the
// choices behind the best points, top down again. Private to pareto_*.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "intraop/pareto_elimination.h"
#include "intraop/pareto_front.h"

namespace shardwright {

// A table that flows into a class, seen from the class.
struct ParetoElimination::Child {
  int32_t class_id = 0;
  size_t own_stride = 0;  // of the class's variable in the child's table
  std::vector<size_t> scope_strides;
};

// Steps with equal content; the root has no step and one value.
struct ParetoElimination::Class {
  int32_t step = -1;  // the first of them
  std::vector<size_t> scope_sizes;
  std::vector<std::pair<int32_t, size_t>> edges;  // table with own values as rows, scope position
  std::vector<Child> children;
};

// A class's table under some multipliers.
struct ParetoElimination::ClassPrices {
  std::vector<double> unary;
  std::shared_ptr<const std::vector<double>> table;
  double subtree = 0.0;  // what was subtracted from it and from all tables before it
};

struct ParetoElimination::Priced {
  std::vector<double> multipliers;  // per tracked row
  double bound = 0.0;
  double margin = 0.0;
  std::vector<ClassPrices> classes;
};

template <size_t kRows>
class ParetoElimination::Pass {
 public:
  Pass(const ParetoElimination& plan, double cutoff, const ParetoOptions& options,
       WorkMeter& meter);

  ParetoResult run();
  std::optional<std::vector<std::vector<int32_t>>> possibleValues();

 private:
  using Point = pareto::Point<kRows>;
  using Front = pareto::Front<kRows>;
  using Levels = pareto::Levels<kRows>;

  // A value of a class's variable that is possible at an entry.
  struct Move {
    int32_t value = 0;
    double cost = 0.0;       // of the variable and its edges to the scope
    size_t first_child = 0;  // its children's entries, in Reach::child_entries
  };
  // Entries of one class that lie on a choice within all cutoffs.
  struct Reach {
    std::unordered_map<uint64_t, int32_t> entry_of_key;
    std::vector<uint64_t> keys;      // offset in the class's table
    std::vector<double> outside;     // per entry and priced: least excess of everything else
    std::vector<size_t> first_move;  // per entry, and the end
    std::vector<Move> moves;
    std::vector<int32_t> child_entries;
  };

  int32_t reach(int32_t class_id, uint64_t key, const std::vector<double>& outside);
  bool findEntries();
  bool expand(int32_t class_id);
  bool buildFronts();
  Point pointOf(int32_t class_id, const Move& move) const;
  Levels levelsOf(int32_t class_id, size_t entry) const;
  // Partial sums of a move with its first, second, ... child (smallest front first in `order`).
  std::vector<Front> stages(int32_t class_id, size_t entry, const Move& move,
                            std::vector<size_t>& order);
  void truncate(Front& front, const Levels& levels);
  bool readOff(const Point& target, std::vector<int32_t>& labels);
  bool readMove(int32_t class_id, size_t entry, const Move& move, const Point& target,
                std::vector<Point>& of_children);
  bool stopped() const { return options_.stop && options_.stop(); }

  const ParetoElimination& plan_;
  double cutoff_;
  const ParetoOptions& options_;
  WorkMeter& meter_;
  std::vector<double> gaps_;  // per priced: excess allowed
  std::vector<Reach> reach_;
  std::vector<std::vector<Front>> fronts_;  // class, entry
  size_t max_front_ = 0;
  size_t num_sums_ = 0;
  double dropped_ = kInfinity;  // least excess over the cutoff of what truncation dropped
  ParetoResult result_;
};

}  // namespace shardwright
