"""Lost, stopped, late and disagreeing ranks, on real processes."""

import re

import pytest
from tests.python.fault import workers
from tests.python.fault.process_group import run_some

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named(victim):
    (outcome,) = run_some(2, workers.killed, victim, expected=[1 - victim])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E401"), text
    assert seconds < 8
    if victim == 1:  # rank 0 holds the store: without it nobody can tell who else lives
        assert "rank 1 is gone" in text
    assert "mlp.py:" in text or "steps.py:" in text or "integer.py:" in text


def test_a_rank_killed_while_batches_are_compared_is_named():
    (outcome,) = run_some(2, workers.killed_early, 1, expected=[0])
    kind, code, text, _ = outcome
    assert (kind, code) == ("CollectiveError", "E401"), text
    assert "rank 1 is gone" in text


def test_a_stage_whose_rank_is_killed_is_named_with_the_microbatch():
    (outcome,) = run_some(2, workers.killed_in_stages, 1, expected=[0])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E401"), text
    assert seconds < 8
    assert "rank 1 is gone" in text
    assert "stage 0, at 0" in text
    assert "microbatch" in text


SCHEDULES = {
    "gpipe": {"num_stages": 2, "schedule": "gpipe"},
    "1f1b": {"num_stages": 2, "schedule": "1f1b"},
    "zero_bubble": {"num_stages": 2, "schedule": "zero_bubble"},
    "interleaved_1f1b": {"num_stages": 4, "schedule": "interleaved_1f1b", "stages_per_rank": 2},
}


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("gpipe", "1f1b") else [])
        for name in SCHEDULES
    ],
)
def test_a_rank_that_dies_within_a_step_in_stages_is_named_within_five_seconds(schedule):
    (outcome,) = run_some(2, workers.killed_in_a_step, 1, SCHEDULES[schedule], expected=[0])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E401"), text
    assert seconds < 5
    assert "rank 1 is gone" in text
    # It waits for gradients of microbatch 2, or for those of 1 that died on their way.
    assert re.search(r"stage \d, at \d(B|I|SEND_F)[123] \(microbatch [123]\)", text), text
    assert re.search(r"transfer \(stage \d -> \d, microbatch [123]\) with rank 1 failed", text), (
        text
    )


def test_a_stopped_rank_is_named_after_the_timeout():
    (outcome,) = run_some(2, workers.stopped, 1, expected=[0])
    kind, code, text, seconds = outcome
    assert (kind, code) == ("CollectiveError", "E402"), text
    assert "rank 1 has stopped" in text
    assert 3 < seconds < 12


def test_a_late_rank_is_named_after_the_timeout():
    outcomes = run_some(2, workers.late, 1, expected=[0, 1])
    kind, code, text, seconds = outcomes[0]
    assert (kind, code) == ("CollectiveError", "E402"), text
    assert "rank 1 did not arrive" in text
    assert 3 < seconds < 12


FIELDS = {
    "width": ("E451", "parameter up.weight"),
    "mesh": ("E451", "mesh"),
    "torch": ("E451", "torch version"),
    "shape": ("E451", "batch"),
    "weights": ("E453", "up.bias"),
    "batch": ("E452", "tokens"),
}


@pytest.mark.parametrize("what", FIELDS)
def test_ranks_that_disagree_say_in_what_before_anything_is_changed(what):
    code, field = FIELDS[what]
    for kind, found, text, _, untouched in run_some(
        2, workers.different, what, expected=[0, 1], init=True
    ):
        assert (kind, found) == ("RankMismatchError", code), text
        assert field in text
        assert untouched or what == "batch"


def test_a_rank_that_cannot_capture_stops_all():
    first, second = run_some(2, workers.different, "capture", expected=[0, 1], init=True)
    assert first[:2] == ("RankMismatchError", "E454"), first
    assert "rank 1" in first[2]
    assert second[:2] == ("CaptureError", "E101"), second
    assert first[4]
    assert second[4]


@pytest.mark.parametrize("mesh", [(4,), (1,)])
def test_a_mesh_of_another_size_than_the_world_is_a_coded_error(mesh):
    for kind, code, text, _ in run_some(
        2, workers.mismatched_mesh, mesh, expected=[0, 1], init=True
    ):
        assert (kind, code) == ("ClusterError", "E357") or code == "E351", text
