"""The ops of capture: schemas hold, shards add up, in-place twins do what the functional ops do."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import shardwright.capture  # noqa: F401  (registers the ops)

ops = torch.ops.shardwright


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def hyper(*values: float) -> list[Tensor]:
    return [torch.tensor(v, dtype=torch.float64) for v in values]


ADAM = hyper(0.1, 0.9, 0.99, 0.01, 1e-8)
FLAGS = {"decoupled": True, "maximize": False}
GROUP = hyper(0.03, 1e-8, 0.999)
MASTER_FLAGS = {"beta1": 0.9, "beta2": 0.99, "dtype": torch.bfloat16}


def adam_arguments(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    moments = [seeded(3, 4, seed=2, dtype=dtype), seeded(3, 4, seed=3, dtype=dtype).abs()]
    return [seeded(3, 4, dtype=dtype), seeded(3, 4, seed=1, dtype=dtype), *moments]


def samples() -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    x, target = seeded(5, 7), torch.tensor([0, 6, -1, 7, 3])
    q, k, v = seeded(2, 4, 3, 8), seeded(2, 2, 3, 8, seed=1), seeded(2, 2, 3, 8, seed=2)
    out, lse = ops.sdpa(q, k, v, None, True, 0.3, True)
    param, grad, first, second = adam_arguments()
    step = torch.tensor(3.0)
    sgd = hyper(0.1, 0.9, 0.5, 0.01)
    no_decay = {"nesterov": True, "maximize": False}
    return [
        (ops.sum_exp, (x, x.amax(1)), {}),
        (ops.pick, (x, target), {}),
        (ops.softmax_minus_onehot, (x, x.logsumexp(1), target, seeded(5)), {}),
        (ops.sdpa, (q, k, v, None, True, 0.3, True), {}),
        (ops.sdpa_backward, (out, q, k, v, None, out, lse, True, 0.3, True), {}),
        (ops.dropout, (x, torch.tensor(3), 1, 0.5), {}),
        (ops.adam_update, (param, grad, first, second, step, *ADAM), FLAGS),
        (ops.adam_amsgrad_update, (param, grad, first, second, second, step, *ADAM), FLAGS),
        (ops.adam_master_update, (param, grad, first, second, *GROUP), MASTER_FLAGS),
        (ops.adam_master_update_, (param, grad, first, second, *GROUP), MASTER_FLAGS),
        (ops.sgd_update, (param, grad, *hyper(0.1, 0.01)), {"maximize": False}),
        (ops.sgd_momentum_update, (param, grad, first, *sgd), no_decay),
        (ops.adam_update_, (param, grad, first, second, step, *ADAM), FLAGS),
        (ops.sgd_momentum_update_, (param, grad, first, *sgd), no_decay),
    ]


@pytest.mark.parametrize("index", range(14))
def test_opcheck(index: int) -> None:
    op, args, kwargs = samples()[index]
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(op.default, args, kwargs, test_utils=utilities)


@pytest.mark.parametrize("num_shards", [1, 2, 7])
def test_loss_pieces_add_up_over_class_shards(num_shards: int) -> None:
    x, target = seeded(5, 7), torch.tensor([0, 6, -100, 2, 3])
    maximum, lse, grad = x.amax(1), x.logsumexp(1), seeded(5, seed=4)
    size = math.ceil(7 / num_shards)
    starts = range(0, 7, size)
    shards = [x[:, s : s + size] for s in starts]
    total = sum(ops.sum_exp(shard, maximum) for shard in shards)
    assert torch.allclose(total, torch.exp(x - maximum[:, None]).sum(1), rtol=1e-15)
    picked = sum(ops.pick(x_s, target, s) for x_s, s in zip(shards, starts, strict=True))
    expected = x.gather(1, target.clamp(min=0)[:, None])[:, 0] * (target >= 0)
    assert torch.equal(picked, expected)
    parts = [
        ops.softmax_minus_onehot(x_s, lse, target, grad, s)
        for x_s, s in zip(shards, starts, strict=True)
    ]
    onehot = F.one_hot(target.clamp(min=0), 7) * (target >= 0)[:, None]
    expected = (torch.softmax(x, 1) - onehot) * grad[:, None]
    assert torch.allclose(torch.cat(parts, 1), expected, rtol=1e-13)


def test_loss_of_bfloat16_logits_is_computed_in_float32() -> None:
    x = seeded(4, 1000, dtype=torch.bfloat16)
    total = ops.sum_exp(x, x.amax(1))
    assert total.dtype == torch.float32
    expected = torch.exp(x.double() - x.amax(1).double()[:, None]).sum(1)
    assert torch.allclose(total.double(), expected, rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_backward_is_the_gradient(masked: bool) -> None:
    q, k, v = (seeded(1, 2, 4, 8, seed=s).requires_grad_() for s in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril() if masked else None
    expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.4)
    grad = seeded(1, 2, 4, 8, seed=5)
    gradients = torch.autograd.grad(expected, (q, k, v), grad)
    q, k, v = (t.detach() for t in (q, k, v))
    out, lse = ops.sdpa(q, k, v, mask, False, 0.4, False)
    assert torch.allclose(out, expected, rtol=1e-12)
    actual = ops.sdpa_backward(grad, q, k, v, mask, out, lse, False, 0.4, False)
    for a, e in zip(actual, gradients, strict=True):
        assert torch.allclose(a, e, rtol=1e-11, atol=1e-13)


def test_row_without_allowed_keys_gives_zeros() -> None:
    q = seeded(1, 1, 2, 4)
    mask = torch.tensor([[True, True], [False, False]])
    out, lse = ops.sdpa(q, q, q, mask, False, 0.5, False)
    assert torch.equal(out[0, 0, 1], torch.zeros(4, dtype=torch.float64))
    dq, _, _ = ops.sdpa_backward(q, q, q, q, mask, out, lse, False, 0.5, False)
    assert torch.isfinite(dq).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_master_update_is_bitwise_the_arithmetic_written_out(dtype: torch.dtype) -> None:
    master, grad, first, second = adam_arguments(torch.float32)
    grad = grad.to(dtype)
    step_size, eps, decay = GROUP
    # AdamW op by op, as the optimizer of the zoo had it before it was one op
    wide = grad.to(torch.float32)
    exp_avg = first.clone().mul_(0.9).add_(wide, alpha=1.0 - 0.9)
    exp_avg_sq = second.clone().mul_(0.99).add_(wide * wide, alpha=1.0 - 0.99)
    change = exp_avg / (exp_avg_sq.sqrt() + eps) * step_size
    expected_master = master.clone().mul_(decay).sub_(change)
    expected = (expected_master.to(dtype), expected_master, exp_avg, exp_avg_sq)
    flags = MASTER_FLAGS | {"dtype": dtype}
    actual = ops.adam_master_update(master, grad, first, second, *GROUP, **flags)
    state = [master.clone(), first.clone(), second.clone()]
    param = ops.adam_master_update_(state[0], grad, *state[1:], *GROUP, **flags)
    for results in (actual, (param, *state)):
        for value, wanted in zip(results, expected, strict=True):
            assert value.dtype == wanted.dtype
            assert torch.equal(value, wanted)
    assert param.data_ptr() != state[0].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_in_place_does_what_the_functional_op_does(dtype: torch.dtype, amsgrad: bool) -> None:
    param, grad, first, second = adam_arguments(dtype)
    state = [first, second, *([second.clone()] if amsgrad else []), torch.tensor(3.0)]
    name = "adam_amsgrad_update" if amsgrad else "adam_update"
    expected = getattr(ops, name)(param, grad, *state, *ADAM, **FLAGS)
    targets = [t.clone() for t in (param, *state)]
    getattr(ops, f"{name}_")(targets[0], grad, *targets[1:], *ADAM, **FLAGS)
    # the fused kernel keeps intermediate values of low-precision types in fp32
    rtol = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for actual, value in zip(targets, expected, strict=True):
        assert torch.allclose(actual, value, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_in_place_does_what_the_functional_op_does(nesterov: bool, strided: bool) -> None:
    param, grad, buffer = (seeded(3, 4, seed=s) for s in range(3))
    if strided:  # not dense: the fused kernel is not used
        grad = seeded(3, 8, seed=1)[:, ::2]
    settings = hyper(0.1, 0.9, 0.0 if nesterov else 0.5, 0.01)
    flags = {"nesterov": nesterov, "maximize": True}
    expected = ops.sgd_momentum_update(param, grad, buffer, *settings, **flags)
    new_param, new_buffer = param.clone(), buffer.clone()
    ops.sgd_momentum_update_(new_param, grad, new_buffer, *settings, **flags)
    assert torch.allclose(new_param, expected[0], rtol=1e-13)
    assert torch.allclose(new_buffer, expected[1], rtol=1e-13)
    plain = ops.sgd_update(param, grad, settings[0], settings[3], maximize=False)
    ops.sgd_update_(param, grad, settings[0], settings[3], maximize=False)
    assert torch.allclose(param, plain, rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sgd_in_place_of_16_bit_tensors_does_not_use_the_broken_kernel(dtype: torch.dtype) -> None:
    # torch 2.13's fused SGD reads memory it never wrote from 16 elements on.
    param, grad, buffer = (seeded(64, seed=s).to(dtype) for s in range(3))
    settings = hyper(0.1, 0.9, 0.5, 0.0)
    flags = {"nesterov": False, "maximize": False}
    expected = ops.sgd_momentum_update(param, grad, buffer, *settings, **flags)
    new_param, new_buffer = param.clone(), buffer.clone()
    ops.sgd_momentum_update_(new_param, grad, new_buffer, *settings, **flags)
    assert torch.equal(new_param, expected[0])
    assert torch.equal(new_buffer, expected[1])
    plain = ops.sgd_update(param, grad, settings[0], settings[3], maximize=False)
    ops.sgd_update_(param, grad, settings[0], settings[3], maximize=False)
    assert torch.equal(param, plain)
