"""Ranks that die, stop or stay away in a transfer between stages, on real processes."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from tests.python.distributed.process_group import init_gloo
from tests.python.fault.process_group import run_some

from shardwright import _core
from shardwright.runtime import collectives
from shardwright.runtime.attribution import Heartbeat, judge
from shardwright.runtime.stage_transfer import StageTransfer

pytestmark = pytest.mark.distributed


def transfer_of(rank, target_ranks):
    """A replicated matrix from rank 0 to one or two ranks of another host."""
    on = _core.Cluster()
    on.num_hosts, on.devices_per_host = 2, 2
    on.inter_host, on.intra_host = _core.Link(1.0), _core.Link(10.0)
    atoms = _core.TensorAtoms((64, 64), ((0,), (1,)))
    source = _core.Submesh((1,), [0], [0])
    target = _core.Submesh((len(target_ranks),), target_ranks, [1] * len(target_ranks))
    whole = [_core.Placement.replicate()]
    plan = _core.plan_transfer(atoms, "float32", whole, source, whole, target, on)
    return StageTransfer(
        plan, rank, torch.device("cpu"), stages=(2, 3), index=0, group=dist.group.WORLD
    )  # fmt: skip


def faulty(rank, world, victim, how, timeout_s):
    """Microbatch after microbatch; before the fourth one rank is lost."""
    init_gloo(rank, world, timeout_s=timeout_s)
    heartbeat = Heartbeat(dist.distributed_c10d._get_default_store(), rank, world)
    heartbeat.start()
    transfer = transfer_of(rank, list(range(1, world)))
    shard = torch.ones(64, 64) if rank == 0 else None
    collectives.begin_step(0)
    dist.barrier()
    for microbatch in range(3):
        transfer.start(shard, microbatch).wait()
    if rank == victim:
        if how == "sleep":
            time.sleep(12)
            return "none", "", "", 0.0
        os.kill(os.getpid(), getattr(signal, how))
    started = time.monotonic()
    try:
        for microbatch in range(3, 20):
            transfer.start(shard, microbatch).wait()
    except RuntimeError:
        verdict = judge(heartbeat, collectives.take_failure(), None, list(range(world)))
        return type(verdict).__name__, verdict.code, str(verdict), time.monotonic() - started
    return "none", "", "", time.monotonic() - started


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_in_a_transfer_is_named_within_five_seconds(victim):
    survivor = 1 - victim
    (outcome,) = run_some(2, faulty, victim, "SIGKILL", 60, expected=[survivor])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E401"), text
    assert seconds < 5
    assert f"rank {survivor}: transfer (stage 2 -> 3, microbatch " in text
    assert f"with rank {victim} failed" in text
    if victim == 1:  # rank 0 holds the store: without it nobody can tell who else lives
        assert "rank 1 is gone" in text


def test_a_rank_that_dies_is_named_by_those_that_gather_with_it():
    outcomes = run_some(3, faulty, 2, "SIGKILL", 60, expected=[0, 1])
    for rank, (kind, code, text, seconds) in enumerate(outcomes):
        assert (kind, code) == ("CollectiveError", "E401"), text
        assert seconds < 5
        assert f"rank {rank}: transfer (stage 2 -> 3, microbatch " in text
        assert "rank 2 is gone" in text


def test_a_rank_that_stops_in_a_transfer_is_named_after_the_timeout():
    (outcome,) = run_some(2, faulty, 1, "SIGSTOP", 3, expected=[0])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E402"), text
    assert "transfer (stage 2 -> 3, microbatch 3) with rank 1 failed" in text
    assert "rank 1 has stopped" in text
    assert 2 < seconds < 12


def test_a_rank_that_does_not_come_is_named_after_the_timeout():
    (outcome,) = run_some(2, faulty, 0, "sleep", 3, expected=[1])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E402"), text
    assert "transfer (stage 2 -> 3, microbatch 3) with rank 0 failed" in text
    assert "rank 0 did not arrive (last seen at step 0, transfer 2)" in text
    assert 2 < seconds < 12
