"""Reductions of bfloat16 gradients: in their own dtype, or as float32 at twice the bytes."""

import dataclasses

import pytest
import torch
from torch import nn

from shardwright import Cluster
from shardwright.cluster import CollectiveConstants
from shardwright.testing import ParityReport, check_parity


def make_step():
    torch.manual_seed(0)
    model = nn.Linear(16, 8, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # Rows whose sum is lost when it is added up one by one in bfloat16.
    x = torch.ones(4, 16).mul(torch.tensor([1.0, 2**-9, 2**-9, 2**-9]).view(4, 1)).bfloat16()

    def step(model, optimizer, x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, (model, optimizer, x)


def data_parallel(*, reduce_in_fp32: bool) -> ParityReport:
    # Rows stay where they are, so gradients have to be added.
    constants = CollectiveConstants(
        forbidden=("all_gather", "all_to_all"), reduce_in_fp32=reduce_in_fp32
    )
    cluster = dataclasses.replace(Cluster.local_cpu(4), constants=constants)
    return check_parity(
        make_step, mesh=(4,), steps=1, dtype=None, cluster=cluster,
        forced={"weight": "R R", "x": "S0 R"},
    )  # fmt: skip


def reduced_bytes(report: ParityReport) -> int:
    return sum(
        count.bytes
        for kind, count in report.collectives.items()
        if kind in ("all_reduce", "reduce_scatter")
    )


def test_float32_reductions_move_twice_the_bytes_and_lose_nothing() -> None:
    own = data_parallel(reduce_in_fp32=False)
    wide = data_parallel(reduce_in_fp32=True)
    assert reduced_bytes(wide) == pytest.approx(2 * reduced_bytes(own))
    assert reduced_bytes(own) > 0
    # Both equal the step on one device: 1 + 3 * 2^-9 rounds to 1 + 2^-7.
    assert wide.max_rel_error == 0
