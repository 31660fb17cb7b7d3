"""Decompositions used while tracing: fewer ops for the rule table, statistics as plain sums.

Means, variances, norms and batch statistics become sums and pointwise ops, so that over a sharded
dim they are sums of partial sums and equal the one-device values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from shardwright.capture.ops.library import accumulate_dtype

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
        _aten.mean.default: _mean_all,
        _aten.mean.dim: _mean_dim,
        _aten.var.correction: _var,
        _aten.var_mean.correction: _var_mean,
        _aten.std.correction: lambda *a, **k: _var(*a, **k).sqrt(),
        _aten.linalg_vector_norm.default: _vector_norm,
        _aten.norm.Scalar: lambda x, p=2: _vector_norm(x, p),
        _aten.norm.ScalarOpt_dim: lambda x, p, dim, keepdim=False: _vector_norm(
            x, 2 if p is None else p, dim, keepdim
        ),
        _aten.native_batch_norm.default: _native_batch_norm,
        _aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
        _aten._native_batch_norm_legit.no_stats: _batch_norm_no_stats,
        _aten._batch_norm_with_update_functional.default: _batch_norm_with_update,
        _aten._native_batch_norm_legit_no_training.default: _batch_norm_no_training,
        _aten.native_batch_norm_backward.default: _batch_norm_backward,
        _aten.batch_norm_backward.default: _batch_norm_backward_reserved,
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


def _dims(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    """Dims as a sorted list of non-negative numbers; none given means all."""
    if isinstance(dim, int):
        dim = [dim]
    if dim is None or (len(dim) == 0):
        return list(range(x.dim()))
    return sorted(d % max(x.dim(), 1) for d in dim)


def _count(x: Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims) if x.dim() else 1


def _mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _mean_dim(x, None, dtype=dtype)


def _mean_dim(
    x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims = _dims(x, dim)
    dtype = x.dtype if dtype is None else dtype
    total = x.to(accumulate_dtype(dtype)).sum(dims, keepdim)
    return (total / _count(x, dims)).to(dtype)


def _centered(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """X minus its mean, and the mean with kept dims, in the accumulation dtype."""
    wide = x.to(accumulate_dtype(x.dtype))
    mean = wide.sum(dims, True) / _count(x, dims)
    return wide - mean, mean


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dims = _dims(x, dim)
    centered, mean = _centered(x, dims)
    divisor = max(_count(x, dims) - (1 if correction is None else correction), 0)
    total = (centered * centered).sum(dims, keepdim)
    var = total / divisor if divisor else total / 0.0
    if not keepdim:
        mean = mean.reshape(var.shape)
    return var.to(x.dtype), mean.to(x.dtype)


def _var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    dims = _dims(x, dim)
    dtype = x.dtype if dtype is None else dtype
    wide = x.to(accumulate_dtype(dtype))
    if ord == 2:
        result = (wide * wide).sum(dims, keepdim).sqrt()
    elif ord == 1:
        result = wide.abs().sum(dims, keepdim)
    elif ord == math.inf:
        result = wide.abs().amax(dims, keepdim)
    elif ord == -math.inf:
        result = wide.abs().amin(dims, keepdim)
    elif ord == 0:
        result = (wide != 0).to(wide.dtype).sum(dims, keepdim)
    else:
        result = wide.abs().pow(ord).sum(dims, keepdim).pow(1.0 / ord)
    return result.to(dtype)


def _per_channel(value: Tensor, x: Tensor) -> Tensor:
    """Shapes a per-channel vector [c] to broadcast over x [n, c, ...]."""
    return value.reshape([1, -1] + [1] * (x.dim() - 2))


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Batch norm from sums: output, saved mean and inverse deviation, new running statistics."""
    dims = [d for d in range(x.dim()) if d != 1]
    wide_dtype = accumulate_dtype(x.dtype)
    if training:
        centered, mean = _centered(x, dims)
        count = _count(x, dims)
        var = (centered * centered).sum(dims) / count
        mean = mean.reshape(var.shape)
        invstd = (var + eps).rsqrt()
        if running_mean is not None:
            blended = mean.to(running_mean.dtype) * momentum
            running_mean = running_mean * (1 - momentum) + blended
        if running_var is not None:
            unbiased = var * (count / max(count - 1, 1))
            running_var = running_var * (1 - momentum) + unbiased.to(running_var.dtype) * momentum
        saved_mean, saved_invstd = mean, invstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = running_mean.to(wide_dtype)
        invstd = (running_var.to(wide_dtype) + eps).rsqrt()
        centered = x.to(wide_dtype) - _per_channel(mean, x)
        saved_mean = saved_invstd = x.new_empty((0,))
    out = centered * _per_channel(invstd, x)
    if weight is not None:
        out = out * _per_channel(weight.to(wide_dtype), x)
    if bias is not None:
        out = out + _per_channel(bias.to(wide_dtype), x)
    return out.to(x.dtype), saved_mean, saved_invstd, running_mean, running_var


def _native_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[:3]


def _batch_norm_functional(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    return _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


def _batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)[:3]


def _batch_norm_with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, momentum: float, eps: float,
) -> Any:  # fmt: skip
    out, mean, invstd, new_mean, new_var = _batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, invstd, x.new_empty((0,), dtype=torch.uint8), new_mean, new_var


def _batch_norm_no_training(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, saved_mean: Tensor | None, saved_invstd: Tensor | None,
    training: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of batch norm from per-channel sums (Ioffe and Szegedy 2015, section 3)."""
    dims = [d for d in range(x.dim()) if d != 1]
    wide = accumulate_dtype(x.dtype)
    grad = grad.to(wide)
    if training:
        assert saved_mean is not None
        assert saved_invstd is not None
        mean, invstd = saved_mean.to(wide), saved_invstd.to(wide)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, invstd = running_mean.to(wide), (running_var.to(wide) + eps).rsqrt()
    normalised = (x.to(wide) - _per_channel(mean, x)) * _per_channel(invstd, x)
    sum_grad = grad.sum(dims)
    sum_product = (grad * normalised).sum(dims)
    grad_x = None
    if output_mask[0]:
        scale = invstd if weight is None else invstd * weight.to(wide)
        inner = grad
        if training:
            count = _count(x, dims)
            inner = inner - _per_channel(sum_grad / count, x)
            inner = inner - normalised * _per_channel(sum_product / count, x)
        grad_x = (inner * _per_channel(scale, x)).to(x.dtype)
    weight_dtype = x.dtype if weight is None else weight.dtype
    return (
        grad_x,
        sum_product.to(weight_dtype) if output_mask[1] else None,
        sum_grad.to(weight_dtype) if output_mask[2] else None,
    )


def _batch_norm_backward_reserved(
    grad: Tensor, x: Tensor, weight: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, saved_mean: Tensor | None, saved_invstd: Tensor | None,
    training: bool, eps: float, output_mask: Sequence[bool], reserve: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    return _batch_norm_backward(
        grad, x, weight, running_mean, running_var, saved_mean, saved_invstd, training, eps,
        output_mask,
    )  # fmt: skip


def _adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Any:
    if list(size) != [1, 1]:
        return NotImplemented
    return _mean_dim(x, [-2, -1], True)


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
    "_foreach_norm": lambda x, ord=2, dtype=None: _vector_norm(x, ord, dtype=dtype),
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
