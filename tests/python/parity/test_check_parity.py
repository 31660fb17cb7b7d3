"""check_parity itself: float64 over ten steps, dropout, and what a report says."""

import math

import pytest
import torch
from tests.python.parity.bug_net import make_step
from tests.python.parity.clusters import slow_compute

from shardwright import zoo
from shardwright.testing import check_parity

MESHES = [(2,), (4,), (2, 2), (2, 4)]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh)))
def test_float64_stays_within_1e_12_over_ten_steps(mesh):
    report = check_parity(make_step, mesh=mesh, steps=10, cluster=slow_compute(math.prod(mesh)))
    assert report.max_rel_error < 1e-12, str(report)
    assert report.collectives
    assert report.reference == "eager"


def test_dropout_draws_the_same_masks_on_every_mesh():
    def make():
        return zoo.gpt(
            hidden=16, layers=1, heads=4, vocab=32, seq_len=8, batch_size=4, tied=True,
            dropout=0.25, device="cpu", dtype=torch.float64,
        )  # fmt: skip

    report = check_parity(make, mesh=(2, 2), steps=2, cluster=slow_compute(4))
    assert report.reference == "captured graph"
    errors = {n: e for n, e in report.errors.items() if "qkv.bias" not in n}
    assert max(errors.values()) < 1e-12, str(report)


def test_a_report_names_what_differs_and_counts_collectives():
    report = check_parity(zoo.mlp_integer, mesh=(2,), steps=1, cluster=slow_compute(2))
    text = str(report)
    assert "parity on mesh (2,) over 1 steps" in text
    assert sum(tally.count for tally in report.collectives.values()) > 0
    assert report.plan is not None
