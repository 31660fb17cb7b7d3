#include "runtime/ledger.h"

#include <algorithm>
#include <utility>

namespace shardwright {

Ledger& Ledger::process() {
  static Ledger ledger;
  return ledger;
}

void Ledger::beginStep(std::int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_ = step;
  next_ordinal_ = 0;
}

std::uint64_t Ledger::start(std::string op, std::string group, std::int64_t bytes,
                            std::string context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ring_[num_started_ % kCapacity] = {.step = step_,
                                     .ordinal = next_ordinal_++,
                                     .op = std::move(op),
                                     .group = std::move(group),
                                     .bytes = bytes,
                                     .context = std::move(context),
                                     .done = false};
  return num_started_++;
}

void Ledger::finish(std::uint64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_started_ - ticket <= kCapacity) {
    ring_[ticket % kCapacity].done = true;
  }
}

void Ledger::fail(std::uint64_t ticket, std::string reason, int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_started_ - ticket <= kCapacity) {
    failure_ = {.entry = ring_[ticket % kCapacity], .reason = std::move(reason), .peer = peer};
  }
}

std::vector<LedgerEntry> Ledger::entries(std::size_t limit) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t count = std::min<std::uint64_t>({num_started_, kCapacity, limit});
  std::vector<LedgerEntry> result;
  result.reserve(count);
  for (std::uint64_t i = num_started_ - count; i < num_started_; ++i) {
    result.push_back(ring_[i % kCapacity]);
  }
  return result;
}

std::optional<LedgerEntry> Ledger::last() const {
  const std::vector<LedgerEntry> newest = entries(1);
  return newest.empty() ? std::nullopt : std::optional(newest.front());
}

std::optional<CollectiveFailure> Ledger::takeFailure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

}  // namespace shardwright
