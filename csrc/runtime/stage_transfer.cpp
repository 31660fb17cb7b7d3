#include "runtime/stage_transfer.h"

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>

#include "base/error.h"
#include "runtime/ledger.h"

namespace shardwright {

namespace {

[[noreturn]] void fail(const std::string& reason, const TransferRoute& route) {
  throw Error(ErrorKind::kInternal, "E902",
              "a transfer between stages does not fit: " + reason + ".",
              {.values = {"rank " + std::to_string(route.rank)},
               .advice = "report this together with the plan (train_step.plan.save)"});
}

at::Tensor box(const at::Tensor& shard, const Region& region) {
  at::Tensor view = shard;
  for (std::size_t i = 0; i < region.size(); ++i) {
    view = view.narrow(static_cast<std::int64_t>(i), region[i].begin, region[i].size);
  }
  return view;
}

// The bytes of a contiguous tensor, as every backend can move them.
at::Tensor bytesOf(const at::Tensor& contiguous) { return contiguous.view(-1).view(at::kByte); }

// A step's boxes of `shard` one after the other; a single contiguous box is not copied.
at::Tensor packed(const at::Tensor& shard, const TransferStep& step) {
  std::vector<at::Tensor> boxes;
  for (const RegionCopy& copy : step.copies) {
    boxes.push_back(box(shard, copy.source).contiguous().view(-1));
  }
  return boxes.size() == 1 ? boxes.front() : at::cat(boxes);
}

bool fitsShard(const Region& region, const std::vector<std::int64_t>& sizes) {
  return std::equal(region.begin(), region.end(), sizes.begin(), sizes.end(),
                    [](const AtomRange& range, std::int64_t size) {
                      return range.begin >= 0 && range.size >= 0 &&
                             range.begin + range.size <= size;
                    });
}

int groupRank(const TransferChannel& channel, int rank) {
  const auto found = std::find(channel.ranks.begin(), channel.ranks.end(), rank);
  return found == channel.ranks.end() ? -1 : static_cast<int>(found - channel.ranks.begin());
}

std::int64_t productOf(const std::vector<std::int64_t>& sizes) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    product *= size;
  }
  return product;
}

void checkStep(const TransferStep& step, const TransferRoute& route, const TransferChannel& sends,
               const TransferChannel& gathers) {
  if (step.from != route.rank && step.to != route.rank) {
    fail("a step is another rank's", route);
  }
  if ((step.kind == TransferKind::kCopy) != (step.from == step.to)) {
    fail("a rank sends to itself", route);
  }
  const bool from_source = step.kind == TransferKind::kCopy || step.kind == TransferKind::kSend;
  const TransferChannel& channel = from_source ? sends : gathers;
  if (step.kind != TransferKind::kCopy &&
      (groupRank(channel, step.from) < 0 || groupRank(channel, step.to) < 0)) {
    fail("a rank is not in the process group of its message", route);
  }
  for (const RegionCopy& copy : step.copies) {
    if (!fitsShard(copy.source, from_source ? route.source_sizes : route.target_sizes) ||
        !fitsShard(copy.target, route.target_sizes)) {
      fail("a region leaves its shard", route);
    }
  }
}

}  // namespace

StageTransfer::StageTransfer(TransferRoute route, const at::TensorOptions& options,
                             TransferChannel sends, TransferChannel gathers)
    : route_(std::move(route)),
      options_(options),
      sends_(std::move(sends)),
      gathers_(std::move(gathers)) {
  for (const TransferStep& step : route_.steps) {
    checkStep(step, route_, sends_, gathers_);
  }
}

std::unique_ptr<PendingTransfer> StageTransfer::start(const std::optional<at::Tensor>& shard,
                                                      std::int64_t tag, std::string context) const {
  at::Tensor source;
  if (route_.has_source) {
    if (!shard || shard->numel() != productOf(route_.source_sizes) ||
        shard->scalar_type() != options_.dtype().toScalarType()) {
      fail("the source shard is missing or of another size or dtype", route_);
    }
    source = shard->detach().contiguous().view(route_.source_sizes);
  }
  std::int64_t bytes = 0;
  for (const TransferStep& step : route_.steps) {
    bytes += step.kind == TransferKind::kCopy ? 0 : step.bytes;
  }
  const std::uint64_t ticket =
      Ledger::process().start("transfer", sends_.group, bytes, std::move(context));
  return std::make_unique<PendingTransfer>(*this, std::move(source), tag, ticket);
}

template <typename Body>
auto PendingTransfer::noted(int peer, Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    Ledger::process().fail(ticket_, error.what(), peer);
    throw;
  }
}

PendingTransfer::PendingTransfer(const StageTransfer& transfer, at::Tensor source, std::int64_t tag,
                                 std::uint64_t ticket)
    : transfer_(transfer), source_(std::move(source)), tag_(tag), ticket_(ticket) {
  if (transfer_.route_.has_target) {
    target_ = at::empty(transfer_.route_.target_sizes, transfer_.options_);
  }
  copyWithinRank();
  post(TransferKind::kSend);
}

void PendingTransfer::copyWithinRank() {
  for (const TransferStep& step : transfer_.route_.steps) {
    if (step.kind == TransferKind::kCopy) {
      for (const RegionCopy& copy : step.copies) {
        box(target_, copy.target).copy_(box(source_, copy.source));
      }
    }
  }
}

void PendingTransfer::post(TransferKind kind) {
  const TransferChannel& channel =
      kind == TransferKind::kSend ? transfer_.sends_ : transfer_.gathers_;
  std::vector<const TransferStep*> steps;
  for (const TransferStep& step : transfer_.route_.steps) {
    if (step.kind == kind) {
      steps.push_back(&step);
    }
  }
  if (steps.empty()) {
    return;
  }
  const auto group = noted(-1, [&] { return c10d::resolve_process_group(channel.group); });
  // One group call on NCCL, in which the messages of a phase run at the same time.
  const at::Device device = transfer_.options_.device();
  if (device.is_cuda()) {
    noted(-1, [&] { group->startCoalescing(device.type()); });
  }
  for (const TransferStep* step : steps) {
    messages_.push_back(postOne(*group, channel, *step));
  }
  if (device.is_cuda()) {
    for (Message& message : messages_) {
      message.work.reset();
    }
    messages_.front().work = noted(-1, [&] { return group->endCoalescing(device.type()); });
  }
}

PendingTransfer::Message PendingTransfer::postOne(c10d::ProcessGroup& group,
                                                  const TransferChannel& channel,
                                                  const TransferStep& step) {
  const bool sends = step.from == transfer_.route_.rank;
  const int peer = sends ? step.to : step.from;
  // What is passed on may have the ranks of a send; relays and gathers never share a pair.
  const bool passed_on = step.kind != TransferKind::kSend;
  const auto wire_tag = static_cast<int>(2 * tag_ + (passed_on ? 1 : 0));
  Message message{.work = {}, .step = &step, .buffer = {}};
  if (sends) {
    message.buffer = packed(passed_on ? target_ : source_, step);
  } else {
    const at::Tensor place = box(target_, step.copies.front().target);
    message.buffer = step.copies.size() == 1 && place.is_contiguous()
                         ? place.view(-1)
                         : at::empty({step.bytes / target_.element_size()}, transfer_.options_);
  }
  std::vector<at::Tensor> tensors{bytesOf(message.buffer)};
  message.work = noted(peer, [&] {
    return sends ? group.send(tensors, groupRank(channel, peer), wire_tag)
                 : group.recv(tensors, groupRank(channel, peer), wire_tag);
  });
  return message;
}

void PendingTransfer::finish() {
  for (const Message& message : messages_) {
    const int rank = transfer_.route_.rank;
    const int peer = message.step->from == rank ? message.step->to : message.step->from;
    if (message.work) {
      noted(transfer_.options_.device().is_cuda() ? -1 : peer,
            [&] { return message.work->wait(); });
    }
    if (message.step->to == rank) {
      unpack(message);
    }
  }
  messages_.clear();
}

void PendingTransfer::unpack(const Message& message) {
  std::int64_t offset = 0;
  for (const RegionCopy& copy : message.step->copies) {
    const at::Tensor place = box(target_, copy.target);
    if (place.data_ptr() != message.buffer.data_ptr()) {
      place.copy_(message.buffer.narrow(0, offset, place.numel()).view(place.sizes()));
    }
    offset += place.numel();
  }
}

std::optional<at::Tensor> PendingTransfer::wait() {
  finish();
  for (const TransferKind kind : {TransferKind::kRelay, TransferKind::kGather}) {
    post(kind);
    finish();
  }
  Ledger::process().finish(ticket_);
  source_.reset();
  if (!transfer_.route_.has_target) {
    return std::nullopt;
  }
  return std::move(target_).view(transfer_.route_.target_shape);
}

}  // namespace shardwright
