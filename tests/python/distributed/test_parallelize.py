"""The decorator on real Gloo processes against the same step on one device."""

import pytest
import torch
from tests.python.distributed.process_group import run_ranks
from tests.python.parity.bug_net import make_step
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


def _float64_run(rank, world, mesh):
    """Changed batch shapes, a scheduler and train/eval mode, against the eager step."""
    torch.set_default_dtype(torch.float64)
    step, args = make_step()
    _, reference = make_step()
    options = {"mesh": mesh, "cluster": slow_compute(world), "timeout": 60, "time_limit_s": 20}
    parallel = sw.parallelize(**options)(step)
    schedulers = [torch.optim.lr_scheduler.StepLR(a[1], 1, 0.5) for a in (args, reference)]
    worst, plans = 0.0, []
    for size in (8, 8, 4, 8, 4):
        losses = []
        for function, (model, optimizer, tokens, targets) in ((parallel, args), (step, reference)):
            loss = function(model, optimizer, tokens[:size], targets[:size])
            losses.append(loss.item())
        worst = max(worst, abs(losses[0] - losses[1]))
        plans.append(parallel.plan)
        for scheduler in schedulers:
            scheduler.step()
    stored = [
        {n: t.text for n, t in plan.inputs.items() if "batch" not in n and "." in n}
        for plan in plans
    ]
    kept = all(s == stored[0] for s in stored)
    return worst, kept, len({id(p) for p in plans})


@pytest.mark.distributed
def test_new_shapes_are_planned_anew_around_the_state_that_is_already_divided():
    for worst, kept, num_plans in run_ranks(2, _float64_run, (2,)):
        assert worst < 1e-12
        assert kept
        assert num_plans == 2
