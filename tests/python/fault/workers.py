"""What the processes of the fault tests do."""

import os
import signal
import time

import torch
from tests.python.parity.bug_net import make_step
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo
from shardwright.pipeline.stage_steps import StageSteps


def _parallel(world, target="mlp_integer", timeout=60, **options):
    step, args = getattr(zoo, target)()
    options = {"mesh": (world,), "cluster": slow_compute(world), **options}
    return sw.parallelize(timeout=timeout, **options)(step), args


def _error(function):
    """The error a call raises: class, code, text and seconds it took."""
    started = time.monotonic()
    try:
        function()
    except sw.ShardwrightError as error:
        return type(error).__name__, error.code, str(error), time.monotonic() - started
    return "none", "", "", time.monotonic() - started


def killed(rank, world, victim):
    """One rank is killed after the first step; the others try to go on."""
    parallel, args = _parallel(world)
    for _ in range(3):  # batches are compared in these
        parallel(*args)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return _error(lambda: [parallel(*args) for _ in range(5)])


def killed_early(rank, world, victim):
    """As `killed`, while the ranks still compare their batches."""
    parallel, args = _parallel(world)
    parallel(*args)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return _error(lambda: parallel(*args))


def killed_in_stages(rank, world, victim):
    """As `killed`, each rank a stage of its own."""
    parallel, args = _parallel(world, mesh=None, num_stages=world, num_microbatches=4)
    for _ in range(3):
        parallel(*args)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return _error(lambda: [parallel(*args) for _ in range(5)])


def killed_in_a_step(rank, world, victim, options):
    """One rank is killed in the fourth step, where stage 1's backward of microbatch 2 begins."""
    parallel, args = _parallel(world, mesh=None, num_microbatches=4, **options)
    for _ in range(3):
        parallel(*args)
    compute = StageSteps._compute

    def die(self, stage, part, microbatch):
        if rank == victim and (stage, part, microbatch) == (1, "I", 2):
            os.kill(os.getpid(), signal.SIGKILL)
        compute(self, stage, part, microbatch)

    StageSteps._compute = die
    return _error(lambda: parallel(*args))


def stopped(rank, world, victim):
    """One rank is suspended after the first step."""
    parallel, args = _parallel(world, timeout=4)
    for _ in range(3):
        parallel(*args)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    return _error(lambda: [parallel(*args) for _ in range(5)])


def late(rank, world, victim):
    """One rank is alive but does not come."""
    parallel, args = _parallel(world, timeout=4)
    for _ in range(3):
        parallel(*args)
    if rank == victim:
        time.sleep(12)
        return "none", "", "", 0.0
    return _error(lambda: [parallel(*args) for _ in range(5)])


def different(rank, world, what):
    """Rank 1 differs from the others in one respect."""
    odd = rank == 1
    step, args = make_step()
    options = {"mesh": (world,), "cluster": slow_compute(world), "timeout": 60}
    model, optimizer, tokens, targets = args
    if what == "width" and odd:
        model.up = torch.nn.Linear(16, 32)
        model.down = torch.nn.Linear(32, 16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    if what == "mesh" and odd:
        options["mesh"] = (1, world)
    if what == "torch" and odd:
        torch.__version__ = "0.0.0"
    if what == "weights" and odd:
        with torch.no_grad():
            model.up.bias[0] += 1
    if what == "batch" and odd:
        tokens = tokens.flip(0)
    if what == "shape" and odd:
        tokens, targets = tokens[:4], targets[:4]
    if what == "capture" and odd:
        step = _branching
    before = [p.detach().clone() for p in model.parameters()]
    parallel = sw.parallelize(**options)(step)
    outcome = _error(lambda: parallel(model, optimizer, tokens, targets))
    same = all(
        a.shape == b.shape and type(b) is torch.nn.Parameter and torch.equal(a, b)
        for a, b in zip(before, model.parameters(), strict=True)
    )
    return (*outcome, same)


def _branching(model, optimizer, tokens, targets):
    if model(tokens).sum() > 0:
        return None
    return model(tokens).sum()


def mismatched_mesh(rank, world, mesh):
    parallel, args = _parallel(world, mesh=mesh, cluster=None)
    return _error(lambda: parallel(*args))
