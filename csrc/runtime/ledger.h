// What this rank has been doing: the last collectives and transfers it started, for messages about
// failures.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace shardwright {

// One collective, or one transfer between stages. `ordinal` counts both from 0 within a step: with
// the program it gives the instruction and the user's source line.
struct LedgerEntry {
  std::int64_t step = -1;
  std::int64_t ordinal = -1;
  std::string op;
  std::string group;
  std::int64_t bytes = 0;
  std::string context;  // of a transfer: "stage 0 -> 1, microbatch 3"
  bool done = false;
};

// A collective or transfer that threw, with the words of the library underneath.
struct CollectiveFailure {
  LedgerEntry entry;
  std::string reason;
  int peer = -1;  // of a transfer: the rank at the other end, where it is known
};

// Ring of the last kCapacity collectives of this process. A mutex guards it: one uncontended lock
// per collective is far below the latency of any collective.
class Ledger {
 public:
  static constexpr std::size_t kCapacity = 4096;

  // The process's ledger: process groups are per process too.
  static Ledger& process();

  // Starts step `step`; the next collective has ordinal 0.
  void beginStep(std::int64_t step);
  // Notes a collective that is about to start; returns its ticket for finish() and fail().
  std::uint64_t start(std::string op, std::string group, std::int64_t bytes,
                      std::string context = {});
  void finish(std::uint64_t ticket);
  void fail(std::uint64_t ticket, std::string reason, int peer = -1);

  // Oldest first, at most `limit` of the newest.
  std::vector<LedgerEntry> entries(std::size_t limit) const;
  std::optional<LedgerEntry> last() const;
  // The failure noted since the last call, if any.
  std::optional<CollectiveFailure> takeFailure();

 private:
  mutable std::mutex mutex_;
  std::array<LedgerEntry, kCapacity> ring_;
  std::uint64_t num_started_ = 0;
  std::int64_t step_ = -1;
  std::int64_t next_ordinal_ = 0;
  std::optional<CollectiveFailure> failure_;
};

}  // namespace shardwright
