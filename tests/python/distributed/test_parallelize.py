"""The decorator on real Gloo processes against the same step on one device."""

import pytest
from tests.python.distributed.process_group import run_ranks
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo


def _train(rank, world, target, mesh, steps):
    step, args = getattr(zoo, target)()
    reference_step, reference_args = getattr(zoo, target)()
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
