"""MixedPrecisionAdamW against torch's AdamW, its bytes per parameter, and its state."""

import copy

import pytest
import torch
from torch import nn

from shardwright.zoo import MixedPrecisionAdamW


def make_parameters(dtype, seed=0):
    """Returns two parameters with values that both dtypes hold."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator).bfloat16() for shape in ((4, 8), (8,))]
    return [nn.Parameter(value.to(dtype)) for value in values]


def set_gradients(params, seed):
    """Gives the parameters gradients that both dtypes hold."""
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        gradient = torch.randn(param.shape, generator=generator).bfloat16()
        param.grad = gradient.to(param.dtype)


# torch's AdamW in fp32 on the same gradients is the oracle of the master copy.
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_master_copy_follows_fp32_adamw(weight_decay):
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    half, full = make_parameters(torch.bfloat16), make_parameters(torch.float32)
    mixed = MixedPrecisionAdamW(half, **options)
    oracle = torch.optim.AdamW(full, **options)
    for seed in range(5):
        set_gradients(half, seed)
        set_gradients(full, seed)
        mixed.step()
        oracle.step()
    for param, expected in zip(half, full, strict=True):
        torch.testing.assert_close(mixed.state[param]["master"], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(param, mixed.state[param]["master"].bfloat16())


# parameter 2 + gradient 2 + master 4 + first moment 4 + second moment 4 = 16.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bytes_per_parameter(dtype):
    params = make_parameters(dtype)
    optimizer = MixedPrecisionAdamW(params)
    set_gradients(params, 0)
    optimizer.step()
    for param in params:
        state = optimizer.state[param]
        tensors = [param, param.grad, state["master"], state["exp_avg"], state["exp_avg_sq"]]
        assert sum(tensor.nbytes for tensor in tensors) == 16 * param.numel()


# 1e-4 is less than half a bf16 step at 1.0 (2^-9), so bf16 alone would never move.
def test_updates_below_half_a_bf16_step_add_up():
    param = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = MixedPrecisionAdamW([param], lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        param.grad = torch.ones_like(param)
        optimizer.step()
    torch.testing.assert_close(param.float(), torch.full((4,), 0.99), rtol=0, atol=2**-8)


def test_a_tensor_learning_rate_equals_a_number():
    numbers, tensors = make_parameters(torch.bfloat16), make_parameters(torch.bfloat16)
    by_number = MixedPrecisionAdamW(numbers, lr=1e-2)
    by_tensor = MixedPrecisionAdamW(tensors, lr=torch.tensor(1e-2))
    for seed in range(3):
        set_gradients(numbers, seed)
        set_gradients(tensors, seed)
        by_number.step()
        by_tensor.step()
    for one, other in zip(numbers, tensors, strict=True):
        torch.testing.assert_close(one, other)


def test_loaded_state_stays_fp32_and_continues_bitwise():
    params = make_parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(params, lr=1e-2)
    set_gradients(params, 0)
    optimizer.step()

    copies = [nn.Parameter(param.detach().clone()) for param in params]
    restored = MixedPrecisionAdamW(copies, lr=1e-2)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for opt, group in ((optimizer, params), (restored, copies)):
        set_gradients(group, 1)
        opt.step()
    for param, other in zip(params, copies, strict=True):
        for name, value in optimizer.state[param].items():
            assert value.dtype == torch.float32
            assert torch.equal(value, restored.state[other][name])
        assert torch.equal(param, other)


def test_frozen_and_unused_parameters_are_left_alone():
    used, unused, frozen = (nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = MixedPrecisionAdamW([used, unused, frozen], lr=0.1)
    used.grad = torch.ones_like(used)
    optimizer.step()
    assert not torch.equal(used, torch.ones_like(used))
    assert torch.equal(unused, torch.ones_like(unused))
    assert frozen not in optimizer.state


def test_a_group_counts_its_steps_once():
    params = make_parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(params)
    set_gradients(params, 0)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 2
    assert "step" not in optimizer.state[params[1]]


def test_a_group_added_later_is_trained_too():
    first, second = make_parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW([first], lr=0.1)
    optimizer.add_param_group({"params": [second], "lr": 0.2})
    before = second.detach().clone()
    set_gradients([second], 0)
    optimizer.step()
    assert optimizer.state[second]["step"] == 1
    assert optimizer.state[first]["step"] == 0
    assert not torch.equal(second, before)


def test_a_parameter_unfrozen_later_is_trained_too():
    param = nn.Parameter(torch.ones(2, dtype=torch.bfloat16), requires_grad=False)
    optimizer = MixedPrecisionAdamW([param], lr=0.1)
    param.requires_grad_(True)
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert (param < 1).all()


def test_closure_is_run_with_gradients_and_returned():
    param = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = MixedPrecisionAdamW([param], lr=0.1)

    def closure():
        loss = param.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2
    assert (param < 1).all()


@pytest.mark.parametrize(
    "options", [{"lr": -1.0}, {"lr": float("nan")}, {"eps": -1.0}, {"betas": (0.9, 1.0)}]
)
def test_hyper_parameters_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        MixedPrecisionAdamW([nn.Parameter(torch.ones(1))], **options)
