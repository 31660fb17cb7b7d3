#include "interop/exhaustive_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardwright::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Walks through all sequences of (end, kind) and prices each complete one from its definition.
class Exhaustion {
 public:
  explicit Exhaustion(const StageProblem& problem) : problem_(problem) {}

  double run() {
    extend(0, 0);
    return best_;
  }

 private:
  struct Chosen {
    int begin;
    int end;
    std::size_t kind;
  };

  void extend(int layer, int devices) {
    if (layer == problem_.num_layers) {
      if (devices == problem_.num_devices ||
          (!problem_.use_all_devices && devices < problem_.num_devices)) {
        best_ = std::min(best_, price());
      }
      return;
    }
    for (int end = layer + 1; end <= problem_.num_layers; ++end) {
      for (std::size_t kind = 0; kind < problem_.kinds.size(); ++kind) {
        const SubmeshShape& shape =
            problem_.submeshes[static_cast<std::size_t>(problem_.kinds[kind].submesh)];
        const int next = devices + shape.num_hosts * shape.devices_per_host;
        if (next > problem_.num_devices) continue;
        chosen_.push_back({layer, end, kind});
        extend(end, next);
        chosen_.pop_back();
      }
    }
  }

  double transfer(int layer, std::size_t left, std::size_t right, bool link) const {
    if (problem_.boundaries.empty()) return 0;
    const Boundary& boundary = problem_.boundaries[static_cast<std::size_t>(layer)];
    std::size_t index = 0;
    if (boundary.time.size() > 1) {
      const StageKind& a = problem_.kinds[left];
      const StageKind& b = problem_.kinds[right];
      const int ports = static_cast<int>(problem_.submeshes.size()) * problem_.num_specs;
      const int row = a.submesh * problem_.num_specs + a.exit_spec;
      const int column = b.submesh * problem_.num_specs + b.entry_spec;
      index = static_cast<std::size_t>(row * ports + column);
    }
    if (!link) return boundary.time[index];
    return boundary.link_time.empty() ? boundary.time[index] / 2 : boundary.link_time[index];
  }

  double wait(int layer, std::size_t kind, bool is_exit) const {
    if (problem_.boundaries.empty()) return 0;
    const Boundary& boundary = problem_.boundaries[static_cast<std::size_t>(layer)];
    const std::vector<double>& waits = is_exit ? boundary.exit_wait : boundary.entry_wait;
    const StageKind& how = problem_.kinds[kind];
    const int port = how.submesh * problem_.num_specs + (is_exit ? how.exit_spec : how.entry_spec);
    return waits.empty() ? 0 : waits[static_cast<std::size_t>(port)];
  }

  double price() const {
    const int count = static_cast<int>(chosen_.size());
    if (problem_.num_stages && *problem_.num_stages != count) return kInfinity;
    std::vector<double> steps;
    double unstepped = 0;  // time that is passed once but is no step of its own
    for (int s = 0; s < count; ++s) {
      const Chosen& stage = chosen_[static_cast<std::size_t>(s)];
      double step = problem_.times[stage.kind].at(stage.begin, stage.end);
      const bool both = problem_.charge == TransferCharge::kBothStages;
      if (s > 0) {
        const std::size_t left = chosen_[static_cast<std::size_t>(s - 1)].kind;
        const double cost = transfer(stage.begin, left, stage.kind, false);
        if (both) {
          step += cost;
        } else {
          const double link = transfer(stage.begin, left, stage.kind, true);
          unstepped += cost - link;
          steps.push_back(link);
        }
      }
      if (both && s + 1 < count) {
        step +=
            transfer(stage.end, stage.kind, chosen_[static_cast<std::size_t>(s + 1)].kind, false);
      }
      double waiting = 0;
      if (!both && s > 0) waiting += wait(stage.begin, stage.kind, false);
      if (!both && s + 1 < count) waiting += wait(stage.end, stage.kind, true);
      steps.push_back(step + waiting);
      unstepped -= waiting;
      if (!fits(stage, count - 1 - s, count)) return kInfinity;
    }
    double sum = unstepped;
    double longest = 0;
    for (const double step : steps) {
      sum += step;
      longest = std::max(longest, step);
    }
    return std::isinf(sum) ? kInfinity : sum + (problem_.num_microbatches - 1) * longest;
  }

  bool fits(const Chosen& stage, int following, int count) const {
    if (!problem_.memory_limit_bytes || problem_.memory.empty()) return true;
    int held = problem_.num_microbatches;
    if (problem_.schedule == ScheduleKind::k1F1B) held = std::min(held, following + 1);
    if (problem_.schedule == ScheduleKind::kZeroBubble) held = std::min(held, count);
    const StageMemory& memory = problem_.memory[stage.kind];
    return memory.fixed_bytes.at(stage.begin, stage.end) +
               held * memory.per_microbatch_bytes.at(stage.begin, stage.end) <=
           *problem_.memory_limit_bytes;
  }

  const StageProblem& problem_;
  std::vector<Chosen> chosen_;
  double best_ = kInfinity;
};

int pick(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

}  // namespace

double leastTimeByExhaustion(const StageProblem& problem) { return Exhaustion(problem).run(); }

StageProblem makeRandomStageProblem(std::mt19937_64& random, const RandomStageOptions& options) {
  StageProblem problem;
  problem.num_layers = pick(random, 1, options.most_layers);
  const int hosts = pick(random, 1, 5);
  const int per_host = 1 << pick(random, 0, hosts > 3 ? 1 : 2);
  problem.submeshes = candidateSubmeshes(hosts, per_host);
  problem.num_devices = hosts * per_host;
  problem.use_all_devices = pick(random, 0, 3) != 0;
  problem.num_microbatches = pick(random, 0, 4) == 0 ? 1 : pick(random, 2, 40);
  problem.num_specs = options.with_boundaries ? pick(random, 1, 2) : 1;
  const int variants = options.with_memory ? 2 : 1;
  problem.schedule = options.with_memory
                         ? static_cast<ScheduleKind>(std::array{0, 1, 1, 3}[random() % 4])
                         : ScheduleKind::k1F1B;
  // Whole numbers make ties, so that equal bests of different shape occur; others do not.
  const bool whole = random() % 2 == 0;
  const auto draw = [&](double scale) {
    const double value = scale * static_cast<double>(random() % 1000) / 1000;
    return whole ? std::floor(value) : value;
  };
  std::vector<double> weights;
  for (int layer = 0; layer < problem.num_layers; ++layer) weights.push_back(1 + draw(20));
  const bool additive = random() % 3 != 0;
  for (std::size_t s = 0; s < problem.submeshes.size(); ++s) {
    for (int entry = 0; entry < problem.num_specs; ++entry) {
      for (int exit = 0; exit < problem.num_specs; ++exit) {
        for (int variant = 0; variant < variants; ++variant) {
          problem.kinds.push_back({static_cast<std::int32_t>(s), entry, exit, variant});
          RangeTable<double> times(problem.num_layers, kInfinity);
          StageMemory memory{RangeTable<std::int64_t>(problem.num_layers, 0),
                             RangeTable<std::int64_t>(problem.num_layers, 0)};
          const int devices = problem.submeshes[s].numDevices();
          for (int i = 0; i < problem.num_layers; ++i) {
            double work = 0;
            for (int j = i + 1; j <= problem.num_layers; ++j) {
              work += weights[static_cast<std::size_t>(j - 1)];
              if (random() % 12 == 0) continue;  // impossible
              const double base = additive ? work : draw(60);
              times.at(i, j) = (whole ? base : base / devices) + draw(3) + (variant == 1 ? 4 : 0);
              memory.fixed_bytes.at(i, j) = static_cast<std::int64_t>(work) * 10 / devices;
              memory.per_microbatch_bytes.at(i, j) =
                  (variant == 1 ? 1 : 4) * static_cast<std::int64_t>(1 + random() % 12);
            }
          }
          problem.times.push_back(std::move(times));
          if (options.with_memory) problem.memory.push_back(std::move(memory));
        }
      }
    }
  }
  if (options.with_memory) problem.memory_limit_bytes = pick(random, 20, 300);
  if (options.with_stage_count && random() % 2 == 0) {
    problem.num_stages = pick(random, 1, problem.num_layers);
  }
  if (options.with_boundaries) {
    problem.charge = random() % 2 == 0 ? TransferCharge::kBothStages : TransferCharge::kLink;
    problem.boundaries.resize(static_cast<std::size_t>(problem.num_layers));
    const std::size_t ports =
        problem.submeshes.size() * static_cast<std::size_t>(problem.num_specs);
    const bool one = problem.num_specs == 1 && random() % 2 == 0;
    for (Boundary& boundary : problem.boundaries) {
      for (std::size_t entry = 0; entry < (one ? 1 : ports * ports); ++entry) {
        boundary.time.push_back(random() % 10 == 0 ? kInfinity : draw(12));
        if (problem.charge == TransferCharge::kLink && ports % 2 == 0) {
          boundary.link_time.push_back(boundary.time.back() * 0.7);
        }
      }
      if (problem.charge == TransferCharge::kLink && random() % 2 == 0) {
        for (std::size_t port = 0; port < ports; ++port) {
          boundary.exit_wait.push_back(draw(6));
          boundary.entry_wait.push_back(draw(6));
        }
      }
    }
  }
  return problem;
}

TEST(ExhaustiveStages, PricesTheTwoWaysOfOneLayerOnTwoDevices) {
  StageProblem problem;
  problem.num_layers = 1;
  problem.submeshes = {{1, 1}, {1, 2}};
  problem.num_devices = 2;
  problem.num_microbatches = 3;
  problem.kinds = {{0, 0, 0, 0}, {1, 0, 0, 0}};
  problem.times = {RangeTable<double>(1, 4.0), RangeTable<double>(1, 3.0)};
  EXPECT_EQ(leastTimeByExhaustion(problem), 9);  // 3 + 2 * 3; one device alone is not all
  problem.times[1].at(0, 1) = 7.0;
  problem.use_all_devices = false;
  EXPECT_EQ(leastTimeByExhaustion(problem), 12);
}

}  // namespace shardwright::testing
