"""Optimizer update ops: one call per parameter, functional for the graph and in place for runs.

Hyper-parameters are 0-d float64 CPU tensors, read at every call, so that a scheduler needs no new
capture. The functional kernels repeat the arithmetic of torch.optim's single-tensor loops.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from shardwright.capture.ops.library import define_op

_HYPER_ADAM = "Tensor lr, Tensor beta1, Tensor beta2, Tensor weight_decay, Tensor eps"
# What a group's parameters share in one step, bias corrections and learning rate included.
_GROUP_SCALARS = (
    "Tensor step_size, Tensor eps, Tensor decay, *, float beta1, float beta2, ScalarType dtype"
)
_HYPER_SGD_MOMENTUM = "Tensor lr, Tensor momentum, Tensor dampening, Tensor weight_decay"


def _decayed(
    param: Tensor, grad: Tensor, lr: float, weight_decay: float, decoupled: bool, maximize: bool
) -> tuple[Tensor, Tensor]:
    """Applies sign and weight decay: returns the decayed parameter and gradient."""
    grad = -grad if maximize else grad
    if weight_decay == 0:
        return param, grad
    if decoupled:
        return param * (1 - lr * weight_decay), grad
    return param, grad.add(param, alpha=weight_decay)


def _adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    step: Tensor,
    hyper: tuple[float, float, float, float, float],
    decoupled: bool,
    maximize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """One Adam step (Kingma and Ba 2015, algorithm 1; decoupled: Loshchilov and Hutter 2019)."""
    lr, beta1, beta2, weight_decay, eps = hyper
    step = step + 1
    param, grad = _decayed(param, grad, lr, weight_decay, decoupled, maximize)
    exp_avg = exp_avg.lerp(grad, 1 - beta1)
    exp_avg_sq = (exp_avg_sq * beta2).addcmul(grad, grad, value=1 - beta2)
    count = float(step.item())
    step_size = lr / (1 - beta1**count)
    correction = math.sqrt(1 - beta2**count)
    second = exp_avg_sq
    if max_exp_avg_sq is not None:
        max_exp_avg_sq = torch.maximum(max_exp_avg_sq, exp_avg_sq)
        second = max_exp_avg_sq
    denominator = second.sqrt().div_(correction).add_(eps)
    param = param.addcdiv(exp_avg, denominator, value=-step_size)
    return param, exp_avg, exp_avg_sq, max_exp_avg_sq, step


def _adam_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    weight_decay: Tensor,
    eps: Tensor,
    *,
    decoupled: bool,
    maximize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hyper = (lr.item(), beta1.item(), beta2.item(), weight_decay.item(), eps.item())
    param, exp_avg, exp_avg_sq, _, step = _adam(
        param, grad, exp_avg, exp_avg_sq, None, step, hyper, decoupled, maximize
    )
    return param, exp_avg, exp_avg_sq, step


def _adam_amsgrad_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    weight_decay: Tensor,
    eps: Tensor,
    *,
    decoupled: bool,
    maximize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    hyper = (lr.item(), beta1.item(), beta2.item(), weight_decay.item(), eps.item())
    param, exp_avg, exp_avg_sq, largest, step = _adam(
        param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, step, hyper, decoupled, maximize
    )
    assert largest is not None
    return param, exp_avg, exp_avg_sq, largest, step


def _adam_update_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    weight_decay: Tensor,
    eps: Tensor,
    *,
    decoupled: bool,
    maximize: bool,
) -> None:
    if not _fusible(param, grad, exp_avg, exp_avg_sq):
        new = _adam_update(
            param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, weight_decay, eps,
            decoupled=decoupled, maximize=maximize,
        )  # fmt: skip
        for old, value in zip((param, exp_avg, exp_avg_sq, step), new, strict=True):
            old.copy_(value)
        return
    _fused_adam(param, grad, exp_avg, exp_avg_sq, None, step, lr, beta1, beta2, weight_decay, eps,
                decoupled, maximize)  # fmt: skip


def _adam_amsgrad_update_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    weight_decay: Tensor,
    eps: Tensor,
    *,
    decoupled: bool,
    maximize: bool,
) -> None:
    if not _fusible(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq):
        new = _adam_amsgrad_update(
            param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, step, lr, beta1, beta2, weight_decay,
            eps, decoupled=decoupled, maximize=maximize,
        )  # fmt: skip
        old_values = (param, exp_avg, exp_avg_sq, max_exp_avg_sq, step)
        for old, value in zip(old_values, new, strict=True):
            old.copy_(value)
        return
    _fused_adam(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, step, lr, beta1, beta2,
                weight_decay, eps, decoupled, maximize)  # fmt: skip


def _fused_adam(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    step: Tensor,
    lr: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    weight_decay: Tensor,
    eps: Tensor,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Calls torch's fused kernel, which expects the step already advanced."""
    fused = torch._fused_adamw_ if decoupled else torch._fused_adam_
    step += 1
    fused(
        [param], [grad], [exp_avg], [exp_avg_sq],
        [] if max_exp_avg_sq is None else [max_exp_avg_sq], [step],
        lr=lr.item(), beta1=beta1.item(), beta2=beta2.item(), weight_decay=weight_decay.item(),
        eps=eps.item(), amsgrad=max_exp_avg_sq is not None, maximize=maximize,
    )  # fmt: skip


def _adam_master_update(
    master: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *group: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    state = (master.clone(), exp_avg.clone(), exp_avg_sq.clone())
    return _adam_master_update_(state[0], grad, *state[1:], *group, **options), *state


def _adam_master_update_(
    master: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step_size: Tensor,
    eps: Tensor,
    decay: Tensor,
    *,
    beta1: float,
    beta2: float,
    dtype: torch.dtype,
) -> Tensor:
    """AdamW on a master copy; the parameter is the new master in `dtype`, always its own tensor.

    The passes over memory made here are what csrc/sharding/rules/update.cpp prices.
    """
    grad = grad.to(master.dtype)
    exp_avg.mul_(beta1).add_(grad, alpha=1.0 - beta1)
    exp_avg_sq.mul_(beta2).add_(grad * grad, alpha=1.0 - beta2)
    denominator = exp_avg_sq.sqrt().add_(eps)
    change = torch.div(exp_avg, denominator, out=denominator).mul_(step_size)
    return master.mul_(decay).sub_(change).to(dtype, copy=True)


def _fusible(*tensors: Tensor) -> bool:
    """Whether torch's fused kernels take these tensors: one floating dtype, dense and non-empty."""
    first = tensors[0]
    return (
        first.numel() > 0
        and first.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and all(t.dtype == first.dtype and t.is_contiguous() for t in tensors)
    )


def _sgd_fusible(*tensors: Tensor) -> bool:
    """As `_fusible`, for SGD: torch 2.13's kernel for 16-bit tensors on CPU is wrong."""
    is_half = tensors[0].dtype in (torch.bfloat16, torch.float16)
    return _fusible(*tensors) and not (is_half and tensors[0].device.type == "cpu")


def _sgd_update(
    param: Tensor, grad: Tensor, lr: Tensor, weight_decay: Tensor, *, maximize: bool
) -> Tensor:
    rate = lr.item()
    param, grad = _decayed(param, grad, rate, weight_decay.item(), False, maximize)
    return param.add(grad, alpha=-rate)


def _sgd_update_(
    param: Tensor, grad: Tensor, lr: Tensor, weight_decay: Tensor, *, maximize: bool
) -> None:
    if not _sgd_fusible(param, grad):
        param.copy_(_sgd_update(param, grad, lr, weight_decay, maximize=maximize))
        return
    torch._fused_sgd_(
        [param], [grad], [], lr=lr.item(), weight_decay=weight_decay.item(), momentum=0.0,
        dampening=0.0, nesterov=False, maximize=maximize, is_first_step=False,
    )  # fmt: skip


def _sgd_momentum_update(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    lr: Tensor,
    momentum: Tensor,
    dampening: Tensor,
    weight_decay: Tensor,
    *,
    nesterov: bool,
    maximize: bool,
) -> tuple[Tensor, Tensor]:
    rate, mu = lr.item(), momentum.item()
    param, grad = _decayed(param, grad, rate, weight_decay.item(), False, maximize)
    momentum_buffer = (momentum_buffer * mu).add(grad, alpha=1 - dampening.item())
    direction = grad.add(momentum_buffer, alpha=mu) if nesterov else momentum_buffer
    return param.add(direction, alpha=-rate), momentum_buffer


def _sgd_momentum_update_(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    lr: Tensor,
    momentum: Tensor,
    dampening: Tensor,
    weight_decay: Tensor,
    *,
    nesterov: bool,
    maximize: bool,
) -> None:
    if not _sgd_fusible(param, grad, momentum_buffer):
        new = _sgd_momentum_update(
            param, grad, momentum_buffer, lr, momentum, dampening, weight_decay,
            nesterov=nesterov, maximize=maximize,
        )  # fmt: skip
        param.copy_(new[0])
        momentum_buffer.copy_(new[1])
        return
    torch._fused_sgd_(
        [param], [grad], [momentum_buffer], lr=lr.item(), weight_decay=weight_decay.item(),
        momentum=momentum.item(), dampening=dampening.item(), nesterov=nesterov, maximize=maximize,
        is_first_step=False,
    )  # fmt: skip


def _like_four(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor,
    *hyper: Tensor, **flags: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(torch.empty_like(t) for t in (param, exp_avg, exp_avg_sq, step))  # type: ignore[return-value]


def _like_five(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor,
    step: Tensor, *hyper: Tensor, **flags: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    values = (param, exp_avg, exp_avg_sq, max_exp_avg_sq, step)
    return tuple(torch.empty_like(t) for t in values)  # type: ignore[return-value]


def _like_master(
    master: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *group: Tensor,
    dtype: torch.dtype, **betas: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    param = torch.empty_like(master, dtype=dtype)
    return param, *(torch.empty_like(t) for t in (master, exp_avg, exp_avg_sq))  # type: ignore[return-value]


def _param_of_master(master: Tensor, *others: Tensor, dtype: torch.dtype, **betas: float) -> Tensor:
    return torch.empty_like(master, dtype=dtype)


def _like_two(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor, *hyper: Tensor, **flags: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(param), torch.empty_like(momentum_buffer)


def _like_param(param: Tensor, grad: Tensor, *hyper: Tensor, **flags: bool) -> Tensor:
    return torch.empty_like(param)


define_op(
    "adam_update(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor step, "
    f"{_HYPER_ADAM}, *, bool decoupled, bool maximize) -> (Tensor, Tensor, Tensor, Tensor)",
    _adam_update,
    _like_four,
)
define_op(
    "adam_amsgrad_update(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, "
    f"Tensor max_exp_avg_sq, Tensor step, {_HYPER_ADAM}, *, bool decoupled, bool maximize) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _adam_amsgrad_update,
    _like_five,
)
define_op(
    "adam_master_update(Tensor master, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, "
    f"{_GROUP_SCALARS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _adam_master_update,
    _like_master,
)
define_op(
    "sgd_update(Tensor param, Tensor grad, Tensor lr, Tensor weight_decay, *, bool maximize) "
    "-> Tensor",
    _sgd_update,
    _like_param,
)
define_op(
    f"sgd_momentum_update(Tensor param, Tensor grad, Tensor momentum_buffer, "
    f"{_HYPER_SGD_MOMENTUM}, *, bool nesterov, bool maximize) -> (Tensor, Tensor)",
    _sgd_momentum_update,
    _like_two,
)
define_op(
    "adam_update_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
    f"Tensor(d!) step, {_HYPER_ADAM}, *, bool decoupled, bool maximize) -> ()",
    _adam_update_,
)
define_op(
    "adam_amsgrad_update_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, "
    "Tensor(c!) exp_avg_sq, Tensor(d!) max_exp_avg_sq, Tensor(e!) step, "
    f"{_HYPER_ADAM}, *, bool decoupled, bool maximize) -> ()",
    _adam_amsgrad_update_,
)
define_op(
    "adam_master_update_(Tensor(a!) master, Tensor grad, Tensor(b!) exp_avg, "
    f"Tensor(c!) exp_avg_sq, {_GROUP_SCALARS}) -> Tensor",
    _adam_master_update_,
    _param_of_master,
)
define_op(
    "sgd_update_(Tensor(a!) param, Tensor grad, Tensor lr, Tensor weight_decay, *, bool maximize) "
    "-> ()",
    _sgd_update_,
)
define_op(
    "sgd_momentum_update_(Tensor(a!) param, Tensor grad, Tensor(b!) momentum_buffer, "
    f"{_HYPER_SGD_MOMENTUM}, *, bool nesterov, bool maximize) -> ()",
    _sgd_momentum_update_,
)
