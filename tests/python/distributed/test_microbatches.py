"""Gradient accumulation on real Gloo processes against the same step on one device."""

import pytest
import torch
from tests.python.distributed.process_group import run_ranks
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo


def _train(rank, world, target, count, dtype):
    step, args = getattr(zoo, target)(dtype=dtype)
    _, reference_args = getattr(zoo, target)(dtype=dtype)
    parallel = sw.parallelize(
        mesh=(world,), num_microbatches=count, cluster=slow_compute(world), timeout=60
    )(step)
    losses = [(parallel(*args).item(), step(*reference_args).item()) for _ in range(3)]
    expected = reference_args[0].state_dict()
    worst = max(
        float((value.full_tensor() - expected[name]).abs().max())
        for name, value in args[0].state_dict().items()
    )
    return losses, worst, parallel.program.num_repeated, parallel.plan.num_microbatches


@pytest.mark.distributed
def test_integers_are_equal_bit_for_bit():
    for losses, worst, repeated, count in run_ranks(2, _train, "gpt_integer", 4, torch.float32):
        assert all(ours == theirs for ours, theirs in losses)
        assert worst == 0.0
        assert repeated == 2
        assert count == 4


@pytest.mark.distributed
def test_float64_agrees_to_rounding():
    for losses, worst, _, _ in run_ranks(2, _train, "mlp_tiny", 4, torch.float64):
        assert all(abs(ours - theirs) <= 1e-12 * abs(theirs) for ours, theirs in losses)
        assert worst < 1e-12


@pytest.mark.distributed
@pytest.mark.parametrize("num_stages", [1, "auto"])
def test_the_number_is_searched(num_stages):
    for losses, worst, counts, same in run_ranks(2, _train_searched, num_stages):
        assert all(ours == theirs for ours, theirs in losses)
        assert worst == 0.0
        assert same
        assert counts[0] in (1, 2, 4)


def _train_searched(rank, world, num_stages):
    step, args = zoo.gpt_integer(dtype=torch.float32)
    _, reference_args = zoo.gpt_integer(dtype=torch.float32)
    parallel = sw.parallelize(
        num_stages=num_stages,
        num_microbatches=None if num_stages == "auto" else "auto",
        cluster=slow_compute(world),
        timeout=60,
    )(step)
    losses = [(parallel(*args).item(), step(*reference_args).item()) for _ in range(2)]
    counts = parallel.plan.num_microbatches, len(parallel.plan.stages)
    again = sw.plan(
        step, *reference_args, cluster=slow_compute(world), num_stages=num_stages,
        num_microbatches="auto",
    )  # fmt: skip
    expected = reference_args[0].state_dict()
    worst = max(
        float(
            (getattr(value, "full_tensor", lambda value=value: value)() - expected[name])
            .abs()
            .max()
        )
        for name, value in args[0].state_dict().items()
    )
    return losses, worst, counts, (again.num_microbatches, len(again.stages)) == counts
