#include "runtime/collectives.h"

#include <chrono>
#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/ledger.h"
#include "runtime/shard_layout.h"

namespace shardwright {

namespace {

using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

// A started collective: the ledger ticket and torch's handle. Callers may start several before
// they wait; today every op waits at once.
struct Pending {
  Work work;
  std::uint64_t ticket = 0;
};

// Runs `body`; whatever it throws is noted in the ledger first, where the executor finds it.
template <typename Body>
auto noted(std::uint64_t ticket, Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    Ledger::process().fail(ticket, error.what());
    throw;
  }
}

template <typename Start>
Pending start(const char* op, const std::string& group, std::int64_t bytes, Start&& issue) {
  const std::uint64_t ticket = Ledger::process().start(op, group, bytes);
  return noted(ticket, [&] {
    const ProcessGroup process_group = c10d::resolve_process_group(group);
    return Pending{.work = issue(*process_group), .ticket = ticket};
  });
}

void wait(const Pending& pending) {
  noted(pending.ticket, [&] { return pending.work->wait(); });
  Ledger::process().finish(pending.ticket);
}

c10d::ReduceOp::RedOpType redOpType(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

// The dtype in which a reduction is carried: float32 for halves, int32 for what backends lack.
at::ScalarType reductionType(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kBool:
    case at::kShort:
      return at::kInt;
    default:
      return type;
  }
}

// A tensor as backends can move it: bool and int16 travel as bytes.
at::Tensor movable(const at::Tensor& tensor) {
  const bool known = tensor.scalar_type() != at::kBool && tensor.scalar_type() != at::kShort;
  return known ? tensor : tensor.view(at::kByte);
}

}  // namespace

ReduceOp parseReduceOp(const std::string& name) {
  if (name == "sum") {
    return ReduceOp::kSum;
  }
  if (name == "max") {
    return ReduceOp::kMax;
  }
  if (name == "min") {
    return ReduceOp::kMin;
  }
  throw Error(ErrorKind::kInternal, "E902", "a program names an unknown reduction.",
              {.values = {"reduction \"" + name + "\""},
               .advice = "report this together with the plan (train_step.plan.save)"});
}

at::Tensor allGather(const at::Tensor& input, std::int64_t dim, std::int64_t outer,
                     std::int64_t group_size, const std::string& group) {
  const PartView view = partView(input.sizes(), dim, outer, group_size, /*whole=*/false);
  const at::Tensor source = input.contiguous();
  at::Tensor slabs = at::empty({view.parts, view.rows, view.columns}, source.options());
  wait(start("all_gather", group, static_cast<std::int64_t>(slabs.nbytes()),
             [&](c10d::ProcessGroup& process_group) {
               at::Tensor result = movable(slabs).flatten();
               at::Tensor operand = movable(source.view(-1));
               return process_group.all_gather_single(result, operand);
             }));
  return unpackParts(slabs, view, gatheredShape(input.sizes(), dim, group_size));
}

at::Tensor reduceScatter(const at::Tensor& input, std::int64_t dim, std::int64_t outer,
                         std::int64_t group_size, ReduceOp reduce, const std::string& group) {
  const PartView view = partView(input.sizes(), dim, outer, group_size, /*whole=*/true);
  at::Tensor slabs = packParts(input.to(reductionType(input.scalar_type())), view).view(-1);
  at::Tensor result = at::empty({view.rows * view.columns}, slabs.options());
  c10d::ReduceScatterOptions options;
  options.reduceOp = redOpType(reduce);
  wait(start("reduce_scatter", group, static_cast<std::int64_t>(slabs.nbytes()),
             [&](c10d::ProcessGroup& process_group) {
               return process_group.reduce_scatter_single(result, slabs, options);
             }));
  return result.to(input.scalar_type()).view(scatteredShape(input.sizes(), dim, group_size));
}

at::Tensor allReduce(const at::Tensor& input, ReduceOp reduce, const std::string& group) {
  const at::ScalarType type = reductionType(input.scalar_type());
  at::Tensor sum =
      type == input.scalar_type()
          ? input.clone(at::MemoryFormat::Contiguous)
          : input.to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  std::vector<at::Tensor> tensors{sum};
  c10d::AllreduceOptions options;
  options.reduceOp = redOpType(reduce);
  wait(start("all_reduce", group, static_cast<std::int64_t>(sum.nbytes()),
             [&](c10d::ProcessGroup& process_group) {
               return process_group.allreduce(tensors, options);
             }));
  return sum.to(input.scalar_type());
}

at::Tensor allToAll(const at::Tensor& input, std::int64_t src_dim, std::int64_t src_outer,
                    std::int64_t dst_dim, std::int64_t dst_outer, std::int64_t group_size,
                    const std::string& group) {
  const PartView send_view =
      partView(input.sizes(), dst_dim, dst_outer, group_size, /*whole=*/true);
  const std::vector<std::int64_t> chunk = scatteredShape(input.sizes(), dst_dim, group_size);
  const std::int64_t chunk_outer =
      exchangedOuter(src_dim, src_outer, dst_dim, dst_outer, group_size);
  const PartView receive_view = partView(chunk, src_dim, chunk_outer, group_size, /*whole=*/false);
  const at::Tensor sent = packParts(input, send_view);
  at::Tensor received =
      at::empty({receive_view.parts, receive_view.rows, receive_view.columns}, sent.options());
  wait(start("all_to_all", group, static_cast<std::int64_t>(sent.nbytes()),
             [&](c10d::ProcessGroup& process_group) {
               at::Tensor result = movable(received).flatten();
               at::Tensor operand = movable(sent.view(-1));
               std::vector<std::int64_t> even;
               return process_group.all_to_all_single(result, operand, even, even);
             }));
  return unpackParts(received, receive_view, gatheredShape(chunk, src_dim, group_size));
}

std::int64_t exchangedOuter(std::int64_t src_dim, std::int64_t src_outer, std::int64_t dst_dim,
                            std::int64_t dst_outer, std::int64_t group_size) {
  const bool dst_outside_src = src_dim == dst_dim && src_outer > dst_outer;
  return dst_outside_src ? src_outer / group_size : src_outer;
}

at::Tensor shardSlice(const at::Tensor& input, std::int64_t dim, std::int64_t outer,
                      std::int64_t group_size, std::int64_t rank) {
  const PartView view = partView(input.sizes(), dim, outer, group_size, /*whole=*/true);
  return takePart(input, view, rank, scatteredShape(input.sizes(), dim, group_size));
}

at::Tensor maskPartial(const at::Tensor& input, bool keep) {
  return keep ? input.clone(at::MemoryFormat::Contiguous)
              : at::zeros(input.sizes(), input.options());
}

}  // namespace shardwright
