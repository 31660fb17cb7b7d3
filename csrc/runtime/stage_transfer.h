// A TransferPlan on torch's process groups: one rank's part of moving a value from one stage's mesh
// to another's, started and waited for separately so that computation can run in between.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "sharding/transfer.h"

namespace shardwright {

// A process group by name, and the global rank of each of its members.
struct TransferChannel {
  std::string group;
  std::vector<int> ranks;
};

// The part of a TransferPlan that one rank performs.
struct TransferRoute {
  int rank = 0;
  std::vector<TransferStep> steps;  // those that name `rank`, in the plan's order
  bool has_source = false;          // whether the rank is in the source mesh
  bool has_target = false;
  std::vector<std::int64_t> source_sizes;  // as in TransferPlan
  std::vector<std::int64_t> target_shape;
  std::vector<std::int64_t> target_sizes;
};

class PendingTransfer;

// One value's transfer, for any number of microbatches.
class StageTransfer {
 public:
  // `options`: dtype and device of the shards. Sends go over `sends`, whose group has every rank of
  // both meshes; relays and gathers over `gathers`, with the ranks of the target mesh: a group of
  // its own, for on one ordered communicator they would wait behind receives posted early. On NCCL
  // both groups must have their communicators (one collective on each before the first transfer).
  // Throws InternalError [E902] for a step that does not fit the route or its groups.
  StageTransfer(TransferRoute route, const at::TensorOptions& options, TransferChannel sends,
                TransferChannel gathers);

  // Posts this rank's sends and receives. `shard` is the source shard on ranks of the source mesh;
  // it must not change before wait(). `tag`, below 2^30, tells transfers in flight between the same
  // ranks apart; on ordered communicators every rank must start its transfers in one order.
  // `context` is for messages about failures: "stage 0 -> 1, microbatch 3".
  // Throws InternalError [E902] for a shard that is missing or of another size.
  std::unique_ptr<PendingTransfer> start(const std::optional<at::Tensor>& shard, std::int64_t tag,
                                         std::string context) const;

 private:
  friend class PendingTransfer;

  TransferRoute route_;
  at::TensorOptions options_;
  TransferChannel sends_;
  TransferChannel gathers_;
};

// A transfer under way. It keeps the buffers alive. `transfer` must outlive it.
class PendingTransfer {
 public:
  PendingTransfer(const StageTransfer& transfer, at::Tensor source, std::int64_t tag,
                  std::uint64_t ticket);

  // Waits for the messages, then relays and gathers with other target ranks (each must come to its
  // own wait()). The target shard, contiguous, on ranks of the target mesh; nothing elsewhere.
  // Contract: called once. Throws what torch throws, noted in the ledger with the peer.
  std::optional<at::Tensor> wait();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;  // none where one handle stands for several messages
    const TransferStep* step = nullptr;
    at::Tensor buffer;
  };

  void copyWithinRank();
  void post(TransferKind kind);
  Message postOne(c10d::ProcessGroup& group, const TransferChannel& channel,
                  const TransferStep& step);
  void finish();
  void unpack(const Message& message);
  template <typename Body>
  auto noted(int peer, Body&& body);

  const StageTransfer& transfer_;
  at::Tensor source_;  // in its atoms' sizes
  at::Tensor target_;
  std::int64_t tag_;
  std::uint64_t ticket_;
  std::vector<Message> messages_;
};

}  // namespace shardwright
