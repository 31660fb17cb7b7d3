"""Verdicts on made-up signs of life, and codes that no real process shows easily."""

import os
import socket
from datetime import timedelta

import pytest
import torch
from tests.python.parity.replicated_table import replicated_table
from tests.python.parity.test_lowering import build, step

import shardwright as sw
from shardwright.capture import capture
from shardwright.lowering.arguments import parse_dtype
from shardwright.lowering.program import CollectiveSite, Program
from shardwright.runtime import groups
from shardwright.runtime.attribution import Sign, judge
from shardwright.runtime.groups import World, check_backend, find_world

SITE = CollectiveSite(7, "all_reduce", 0, "mm", "layers.0.up", "train.py:57")


def sign(rank, count=1, step=5, ordinal=3, op="all_reduce", pid=None, host=None):
    pid = os.getpid() if pid is None else pid
    host = socket.gethostname() if host is None else host
    return Sign(rank, count, step, ordinal, op, pid, host, "running")


class Signs:
    """Rank 0 of some ranks, reading prepared signs one after the other."""

    def __init__(self, *readings):
        self.rank, self.size = 0, max(len(r) for r in readings)
        self.readings = list(readings)

    def signs(self):
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return {s.rank: s for s in reading}


def verdict(heartbeat, reason="Connection reset", ordinal=3):
    failure = {
        "step": 5, "ordinal": ordinal, "op": "all_reduce", "group": "g", "bytes": 64,
        "reason": reason,
    }  # fmt: skip
    return judge(heartbeat, failure, SITE, [0, 1], sleep=lambda _: None)


def test_the_message_has_rank_op_place_and_line():
    error = verdict(Signs([sign(0), sign(1, pid=2**22 + 1, ordinal=2)]))
    assert error.code == "E401"
    text = str(error)
    assert "rank 0: all_reduce failed: rank 1 is gone" in text
    assert "last seen at step 5, collective 2 (all_reduce)" in text
    assert "layers.0.up" in text
    assert "at: train.py:57" in text


def test_ranks_in_different_collectives_have_diverged():
    error = verdict(Signs([sign(0), sign(1, op="all_gather")]))
    assert error.code == "E403"
    assert "rank 1 is in all_gather there" in str(error)


def test_a_rank_without_new_signs_has_stopped():
    far = "another-host"
    heartbeat = Signs([sign(0), sign(1, host=far, ordinal=2)])
    assert verdict(heartbeat, "Timed out waiting").code == "E402"


def test_all_alive_leaves_the_network():
    heartbeat = Signs(*[[sign(0, n), sign(1, n, ordinal=4)] for n in range(8)])
    assert verdict(heartbeat).code == "E404"


def test_without_signs_the_reason_stays_unknown():
    assert verdict(None).code == "E404"


def test_a_number_of_processes_must_be_a_number():
    with pytest.raises(sw.ConfigError, match="E501"):
        find_world({"WORLD_SIZE": "many"}, torch.device("cpu"), timedelta(seconds=1))


def test_nccl_cannot_move_tensors_of_the_cpu(monkeypatch):
    monkeypatch.setattr(groups.dist, "get_backend", lambda: "nccl")
    with pytest.raises(sw.ConfigError, match="E502"):
        check_backend(World(0, 2, has_group=True), torch.device("cpu"))


def test_a_gpu_without_preset_asks_for_a_cluster(monkeypatch):
    from shardwright.api import default_cluster

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Abacus 3000")
    with pytest.raises(sw.ConfigError, match="E504"):
        default_cluster(2, torch.device("cuda"))


def test_an_unknown_dtype_is_refused():
    with pytest.raises(sw.InternalError, match="E940"):
        parse_dtype("complex64")


def test_a_table_that_names_foreign_ops_or_nodes_is_refused():
    import dataclasses

    graph = capture(step, build())
    table = replicated_table(graph, (2,))
    index = next(i for i, ins in enumerate(table.instructions) if ins.op == "aten.mm.default")
    for change in ({"op": "aten.system.default"}, {"node": "nowhere"}):
        instructions = list(table.instructions)
        instructions[index] = dataclasses.replace(instructions[index], **change)
        changed = dataclasses.replace(table, instructions=tuple(instructions))
        with pytest.raises(sw.InternalError, match="E941"):
            _ = Program(graph, changed).targets
