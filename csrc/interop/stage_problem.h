// The stage search as plain tables: what each range of layers costs on each submesh, what crossing
// a boundary costs, and the memory it takes. Times are in any one unit, the caller's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interop/schedule.h"
#include "mesh/submesh_shape.h"

namespace shardwright {

// One way to run a stage. Specs number the forms in which tensors lie at a boundary; variants
// number ways that differ only in cost and memory, such as with and without recomputation.
struct StageKind {
  std::int32_t submesh = 0;
  std::int32_t entry_spec = 0;
  std::int32_t exit_spec = 0;
  std::int32_t variant = 0;
};

// Values for every range of layers [begin, end), 0 <= begin < end <= num_layers.
template <typename T>
class RangeTable {
 public:
  RangeTable() = default;
  RangeTable(int num_layers, T value)
      : num_layers_(num_layers),
        values_(static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(num_layers + 1) / 2,
                value) {}

  int numLayers() const { return num_layers_; }
  bool empty() const { return values_.empty(); }
  T& at(int begin, int end) { return values_[position(begin, end)]; }
  const T& at(int begin, int end) const { return values_[position(begin, end)]; }
  // Of the ranges that start at `begin`: [0] ends at begin + 1.
  const T* row(int begin) const { return &values_[position(begin, begin + 1)]; }

 private:
  std::size_t position(int begin, int end) const {
    const auto b = static_cast<std::size_t>(begin);
    const auto k = static_cast<std::size_t>(num_layers_);
    return b * (2 * k - b + 1) / 2 + static_cast<std::size_t>(end - begin - 1);
  }

  int num_layers_ = 0;
  std::vector<T> values_;
};

// Memory of one kind of stage: `fixed` bytes per device, and `per_microbatch` bytes for every
// microbatch in flight.
struct StageMemory {
  RangeTable<std::int64_t> fixed_bytes;
  RangeTable<std::int64_t> per_microbatch_bytes;
};

// What a transfer at a boundary costs time of.
enum class TransferCharge : std::uint8_t {
  kBothStages,  // sender and receiver wait: it is part of the time of both neighbours
  kLink,        // it overlaps computation: one more step of the pipeline, on a link of its own
};

// Transfers at the boundary in front of a layer, forward and backward together. By port of the
// stage before and port of the stage after it; a port is submesh * num_specs + spec. One entry
// stands for all pairs; infinity forbids a pair.
struct Boundary {
  std::vector<double> time;
  // With kLink: the longer of the two directions, which have links of their own; empty: half of
  // `time`.
  std::vector<double> link_time = {};
  // With kLink, by port: what the stage in front of the boundary, and the one behind it, wait per
  // microbatch for transfers that nothing they have in flight hides. Part of how long their step
  // lasts, but not of the sum, which has the transfers already. Empty: nothing.
  std::vector<double> exit_wait = {};
  std::vector<double> entry_wait = {};
};

struct StageProblem {
  int num_layers = 0;
  std::vector<SubmeshShape> submeshes;
  int num_devices = 0;
  // All devices must be used, as in Alpa; otherwise at most all.
  bool use_all_devices = true;
  int num_microbatches = 1;
  // Exactly so many stages; any number without.
  std::optional<int> num_stages = {};
  int num_specs = 1;
  std::vector<StageKind> kinds;
  std::vector<RangeTable<double>> times;  // by kind, forward and backward; infinity forbids
  std::vector<Boundary> boundaries;       // by layer; entry 0 is not read; empty: free
  TransferCharge charge = TransferCharge::kBothStages;
  // Microbatches in flight are those of this schedule.
  ScheduleKind schedule = ScheduleKind::k1F1B;
  std::vector<StageMemory> memory = {};  // by kind; empty: nothing is held
  std::optional<std::int64_t> memory_limit_bytes = {};
};

// Throws ProblemError [E221] where the tables contradict each other: sizes, indices, NaN or
// negative numbers, shapes that do not tile, counts below 1, more stages than layers, interleaved
// schedules (which place stages otherwise).
void validate(const StageProblem& problem);

}  // namespace shardwright
