"""Decompositions used while tracing: fewer ops for the rule table, statistics as plain sums.

Means, variances, norms and batch statistics become sums and pointwise ops, so that over a sharded
dim they are sums of partial sums and equal the one-device values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from shardwright.capture.batch_norm import (
    Assign,
    batch_norm_backward,
    batch_norm_backward_reserved,
    batch_norm_in_place,
    batch_norm_no_stats,
    batch_norm_no_training,
    batch_norm_with_update,
)
from shardwright.capture.ops.library import accumulate_dtype
from shardwright.capture.reductions import mean_all, mean_dim, var, var_mean, vector_norm

_aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]


@functools.cache
def decomposition_table() -> Table:
    """Overload -> function in terms of simpler ATen ops."""
    table: Table = dict(get_decompositions([
        _aten.mse_loss, _aten.mse_loss_backward, _aten.smooth_l1_loss,
        _aten.smooth_l1_loss_backward, _aten.huber_loss, _aten.huber_loss_backward,
        _aten.binary_cross_entropy, _aten.binary_cross_entropy_backward,
        _aten.binary_cross_entropy_with_logits, _aten.soft_margin_loss, _aten.addcdiv,
        _aten.addcmul, _aten.logaddexp, _aten.native_group_norm, _aten.native_group_norm_backward,
        _aten.native_dropout_backward, _aten.glu, _aten.glu_backward, _aten.logsumexp.default,
        _aten.rsub, _aten.addmv, _aten.mv, _aten.dot, _aten.addr,
        _aten.softplus_backward, _aten.hardsigmoid, _aten.hardsigmoid_backward,
        _aten.hardswish, _aten.hardswish_backward, _aten.select_backward, _aten.slice_backward,
        _aten._adaptive_avg_pool2d, _aten.im2col, _aten.col2im,
    ]))  # fmt: skip
    for overload in (_aten.select_backward.default, _aten.slice_backward.default):
        table.pop(overload, None)
    table.update({
        _aten.addmm.default: _addmm,
        _aten.baddbmm.default: _addmm,
        _aten.mean.default: mean_all,
        _aten.mean.dim: mean_dim,
        _aten.var.correction: var,
        _aten.var_mean.correction: var_mean,
        _aten.std.correction: lambda *a, **k: var(*a, **k).sqrt(),
        _aten.linalg_vector_norm.default: vector_norm,
        _aten.norm.Scalar: lambda x, p=2: vector_norm(x, p),
        _aten.norm.ScalarOpt_dim: lambda x, p, dim, keepdim=False: vector_norm(
            x, 2 if p is None else p, dim, keepdim
        ),
        _aten._native_batch_norm_legit.no_stats: batch_norm_no_stats,
        _aten._native_batch_norm_legit_no_training.default: batch_norm_no_training,
        _aten.native_batch_norm_backward.default: batch_norm_backward,
        _aten.batch_norm_backward.default: batch_norm_backward_reserved,
        _aten._adaptive_avg_pool2d.default: _adaptive_avg_pool2d,
        _aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool2d_backward,
        _aten.nll_loss_forward.default: _nll_loss_forward,
        _aten.nll_loss_backward.default: _nll_loss_backward,
    })  # fmt: skip
    table.update(_foreach_table())
    return table


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = a @ b if a.dim() == 2 else torch.bmm(a, b)
    if alpha != 1:
        product = product * alpha
    return product + (bias if beta == 1 else bias * beta)


def _adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Any:
    if list(size) != [1, 1]:
        return NotImplemented
    return mean_dim(x, [-2, -1], True)


def _adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Any:
    if list(grad.shape[-2:]) != [1, 1]:
        return NotImplemented
    return (grad / (x.shape[-1] * x.shape[-2])).expand(x.shape)


def _nll_rows(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    rows = x if x.dim() == 2 else x.unsqueeze(0)
    return rows, target.reshape(-1)


def _nll_weight(rows: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Weight of each row: 0 for ignored targets; [n] in the accumulation dtype."""
    dtype = accumulate_dtype(rows.dtype)
    counts = (target != ignore_index).to(dtype)
    if weight is None:
        return counts
    classes = weight.unsqueeze(0).expand(rows.shape)
    picked: Tensor = torch.ops.shardwright.pick(classes, target)
    return picked * counts


def _nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    rows, flat = _nll_rows(x, target)
    row_weight = _nll_weight(rows, flat, weight, ignore_index)
    nll = -torch.ops.shardwright.pick(rows, flat) * row_weight
    total_weight = row_weight.sum()
    if reduction == 0:
        return nll.reshape(target.shape).to(x.dtype), x.new_zeros(())
    total = nll.sum()
    if reduction == 1:
        total = total / total_weight
    return total.to(x.dtype), total_weight.to(x.dtype)


def _nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int,
    ignore_index: int, total_weight: Tensor,
) -> Tensor:  # fmt: skip
    rows, flat = _nll_rows(x, target)
    row_weight = _nll_weight(rows, flat, weight, ignore_index)
    if reduction == 1:
        grad = grad / total_weight
    row_grad = -(grad.reshape(-1) * row_weight)
    classes = torch.arange(rows.shape[1], dtype=flat.dtype)
    chosen = (classes.unsqueeze(0) == flat.unsqueeze(1)).to(row_grad.dtype)
    return (chosen * row_grad.unsqueeze(1)).to(x.dtype).reshape(x.shape)


# ATen foreach name -> op on one tensor.
_FOREACH: dict[str, Callable[..., Tensor]] = {
    "_foreach_add": torch.add, "_foreach_sub": torch.sub, "_foreach_mul": torch.mul,
    "_foreach_div": torch.div, "_foreach_neg": torch.neg, "_foreach_sqrt": torch.sqrt,
    "_foreach_rsqrt": torch.rsqrt, "_foreach_reciprocal": torch.reciprocal,
    "_foreach_abs": torch.abs, "_foreach_sign": torch.sign, "_foreach_exp": torch.exp,
    "_foreach_log": torch.log, "_foreach_maximum": torch.maximum,
    "_foreach_minimum": torch.minimum, "_foreach_clamp_min": torch.clamp_min,
    "_foreach_clamp_max": torch.clamp_max, "_foreach_pow": torch.pow,
    "_foreach_lerp": torch.lerp, "_foreach_addcmul": torch.addcmul,
    "_foreach_addcdiv": torch.addcdiv, "_foreach_zero": torch.zeros_like,
    "_foreach_norm": lambda x, ord=2, dtype=None: vector_norm(x, ord, dtype=dtype),
    "_foreach_copy": lambda x, source, non_blocking=False: source.to(x.dtype).expand(x.shape),
}  # fmt: skip


def _foreach_table() -> Table:
    table: Table = {}
    for name, function in _FOREACH.items():
        packet = getattr(_aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            if "out" not in overload:
                op = getattr(packet, overload)
                table[op] = functools.partial(_each, name, function)
    return table


def _each(name: str, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Applies a function per tensor; list arguments are taken element by element."""
    length = next(len(a) for a in args if isinstance(a, (list, tuple)))
    scaled = name in ("_foreach_addcmul", "_foreach_addcdiv")
    results = []
    for i in range(length):
        values = [a[i] if isinstance(a, (list, tuple)) else a for a in args]
        if scaled and len(values) == 4:
            kwargs = {"value": values.pop()}
        results.append(function(*values, **kwargs))
    return results


def _foreach_in_place(
    name: str, function: Callable[..., Tensor], assign: Assign, targets: Sequence[Tensor],
    *args: Any, **kwargs: Any,
) -> None:  # fmt: skip
    for target, new in zip(targets, _each(name, function, targets, *args, **kwargs), strict=True):
        assign(target, new)


def _in_place_table() -> Table:
    table: Table = {
        _aten.native_batch_norm.default: batch_norm_in_place,
        _aten._native_batch_norm_legit.default: batch_norm_in_place,
        _aten._batch_norm_with_update.default: batch_norm_with_update,
    }
    for name, function in _FOREACH.items():
        packet = getattr(_aten, f"{name}_", None)
        for overload in packet.overloads() if packet is not None else ():
            if "out" not in overload:
                handler = functools.partial(_foreach_in_place, name, function)
                table[getattr(packet, overload)] = handler
    return table


# Overload that writes into its arguments -> function that gets, before the op's arguments, the
# function which writes a value into a tensor.
IN_PLACE: Table = _in_place_table()
