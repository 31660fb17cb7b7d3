"""The decorator on real Gloo processes against the same step on one device."""

import pytest
import torch
from tests.python.distributed.process_group import run_ranks
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo


def _train(rank, world, target, mesh, steps, dtype=torch.float32):
    step, args = getattr(zoo, target)(dtype=dtype)
    reference_step, reference_args = getattr(zoo, target)(dtype=dtype)
    parallel = sw.parallelize(mesh=mesh, cluster=slow_compute(world), timeout=60)(step)
    losses = [
        (parallel(*args).item(), reference_step(*reference_args).item()) for _ in range(steps)
    ]
    state = args[0].state_dict()
    expected = reference_args[0].state_dict()
    assert list(state) == list(expected)
    worst = 0.0
    for name, value in state.items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        assert value.shape == expected[name].shape
        worst = max(worst, float((whole - expected[name]).abs().max()))
    assert all(p.grad is None for p in args[0].parameters())
    local = sum(p.to_local().numel() for p in args[0].parameters())
    whole = sum(p.numel() for p in args[0].parameters())
    kinds = {site.kind for site in parallel.program.collectives}
    return losses, worst, local / whole, kinds


@pytest.mark.distributed
@pytest.mark.parametrize(("target", "mesh"), [("mlp_integer", (2,)), ("mlp_integer", (2, 2))])
def test_integers_are_equal_bit_for_bit(target, mesh):
    world = 2 if mesh == (2,) else 4
    for losses, worst, share, kinds in run_ranks(world, _train, target, mesh, 3):
        assert all(ours == theirs for ours, theirs in losses)
        assert worst == 0.0
        assert share < 0.8
        assert kinds


@pytest.mark.distributed
@pytest.mark.parametrize("target", ["gpt_tiny"])
def test_float64_agrees_to_rounding(target):
    for losses, worst, _, kinds in run_ranks(4, _train, target, (2, 2), 3, torch.float64):
        assert all(abs(ours - theirs) <= 1e-12 * abs(theirs) for ours, theirs in losses)
        # Adam divides a gradient that is pure rounding (a key bias) by its own size.
        assert worst < 1e-9
        assert kinds
