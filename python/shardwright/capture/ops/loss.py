"""Cross entropy in pieces that may be sharded over classes, without a second [n, v] tensor.

Each kernel accepts the offset of its first class, so a shard of the class dim passes its own
offset and the results add up over shards. Low-precision logits are computed in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardwright.capture.ops.library import accumulate_dtype, define_op


def _sum_exp(x: Tensor, maximum: Tensor) -> Tensor:
    """Sum over classes of exp(x - maximum): x [n, v], maximum [n] -> [n] fp32 (fp64 for fp64)."""
    dtype = accumulate_dtype(x.dtype)
    return torch.exp(x.to(dtype) - maximum.to(dtype).unsqueeze(1)).sum(1)


def _local_class(x: Tensor, target: Tensor, class_offset: int) -> tuple[Tensor, Tensor]:
    """Index of each target within this class range, and whether it lies inside; both [n]."""
    index = target - class_offset
    inside = (index >= 0) & (index < x.shape[1])
    return torch.where(inside, index, torch.zeros_like(index)), inside


def _pick(x: Tensor, target: Tensor, class_offset: int = 0) -> Tensor:
    """x[i, target[i]]: x [n, v], target [n] -> [n] fp32 (fp64 for fp64); 0 outside the range."""
    index, inside = _local_class(x, target, class_offset)
    picked = x.gather(1, index.unsqueeze(1)).squeeze(1).to(accumulate_dtype(x.dtype))
    return torch.where(inside, picked, torch.zeros_like(picked))


def _softmax_minus_onehot(
    x: Tensor, lse: Tensor, target: Tensor, grad: Tensor, class_offset: int = 0
) -> Tensor:
    """Gradient of lse - pick: (exp(x - lse) - onehot(target)) * grad, [n, v] in x's dtype."""
    dtype = accumulate_dtype(x.dtype)
    index, inside = _local_class(x, target, class_offset)
    result = torch.exp(x.to(dtype) - lse.to(dtype).unsqueeze(1))
    result.scatter_add_(1, index.unsqueeze(1), -inside.to(dtype).unsqueeze(1))
    return (result * grad.to(dtype).unsqueeze(1)).to(x.dtype)


def _one_per_row(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return x.new_empty((x.shape[0],), dtype=accumulate_dtype(x.dtype))


def _like_logits(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return x.new_empty(x.shape)


define_op("sum_exp(Tensor x, Tensor maximum) -> Tensor", _sum_exp, _one_per_row)
define_op("pick(Tensor x, Tensor target, int class_offset=0) -> Tensor", _pick, _one_per_row)
define_op(
    "softmax_minus_onehot(Tensor x, Tensor lse, Tensor target, Tensor grad, int class_offset=0) "
    "-> Tensor",
    _softmax_minus_onehot,
    _like_logits,
)


class _ClassNll(torch.autograd.Function):
    """Negative log likelihood per row: logits [n, v], target [n] -> [n] fp32 (fp64 for fp64)."""

    @staticmethod
    def forward(ctx, x, target):  # type: ignore[no-untyped-def]
        ops = torch.ops.shardwright
        maximum = torch.amax(x, 1)
        lse = torch.log(ops.sum_exp(x, maximum)) + maximum.to(accumulate_dtype(x.dtype))
        ctx.save_for_backward(x, lse, target)
        return lse - ops.pick(x, target)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, lse, target = ctx.saved_tensors
        return torch.ops.shardwright.softmax_minus_onehot(x, lse, target, grad), None


def cross_entropy(
    x: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Cross entropy with class indices, as torch.nn.functional.cross_entropy defines it.

    Args:
        x: logits [v], [n, v] or [n, v, d1, ...].
        target: class indices [], [n] or [n, d1, ...].
        ignore_index: rows with this target count neither in the sum nor in the mean.
        reduction: "none", "sum" or "mean" (the mean divides by the number of rows that count).
        dtype: of the result.

    Returns:
        The loss in the given dtype, by default x's.
    """
    dtype = x.dtype if dtype is None else dtype
    rows = x.unsqueeze(0) if x.dim() == 1 else x
    if rows.dim() > 2:
        rows = rows.movedim(1, -1)
        rows = rows.reshape(-1, rows.shape[-1])
    flat_target = target.reshape(-1)
    counts = flat_target != ignore_index
    nll = _ClassNll.apply(rows, flat_target)  # type: ignore[no-untyped-call]
    nll = torch.where(counts, nll, torch.zeros_like(nll))
    if reduction == "none":
        return nll.reshape(target.shape).to(dtype)
    loss = nll.sum()
    if reduction == "mean":
        loss = loss / counts.to(nll.dtype).sum()
    return loss.to(dtype)
