"""Schedules from Python: torch reads their text and finds the same order in them."""

import pytest
from torch.distributed.pipelining.schedules import (  # the grammar's own reader
    _Action,
    _simulate_comms_compute,
    _validate_schedule,
)

import shardwright as sw
from shardwright._core import Action, Schedule, add_transfers, make_schedule

KINDS = ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]


def torch_lists(schedule: Schedule) -> dict[int, list[_Action | None]]:
    rows = str(schedule).splitlines()
    return {rank: [_Action.from_str(text) for text in row.split(",")] for rank, row in
            enumerate(rows)}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_microbatches", [1, 3, 8])
def test_torch_accepts_and_finishes_every_schedule(kind: str, num_microbatches: int) -> None:
    stages_per_rank = 2 if kind == "interleaved_1f1b" else 1
    schedule = make_schedule(
        kind, num_ranks=4, num_microbatches=num_microbatches, stages_per_rank=stages_per_rank
    )
    lists = torch_lists(schedule)
    computations = {
        rank: [action for action in actions if action is not None and action.is_compute_op]
        for rank, actions in lists.items()
    }
    num_stages = 4 * stages_per_rank
    _validate_schedule(computations, 4, num_stages, num_microbatches)
    # torch's own simulator of transfers; it raises when the lists do not finish.
    _simulate_comms_compute(lists, lambda stage: schedule.rank_of_stage[stage], num_stages)


def test_actions_say_what_they_are() -> None:
    action = Action("0SEND_F1>3")
    assert (action.stage, action.kind, action.microbatch, action.peer) == (0, "SEND_F", 1, 3)
    assert action.is_transfer
    assert action.is_send
    assert Action("2I4").peer is None
    assert {Action("2I4"), Action("2I4")} == {Action("2I4")}


def test_lists_by_hand_get_their_transfers() -> None:
    schedule = add_transfers(
        [["0F0", "0B0"], ["1F0", "1B0"]], rank_of_stage=[0, 1], edges=[(0, 1)], num_microbatches=1
    )
    assert str(schedule) == "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    assert schedule.check().ok


def test_the_checker_says_who_waits_for_whom() -> None:
    schedule = Schedule(
        [["0F0", "0RECV_B0", "0SEND_F0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]],
        rank_of_stage=[0, 1],
        edges=[(0, 1)],
        num_microbatches=1,
    )
    report = schedule.check()
    assert not report.ok
    assert str(report) == (
        "rank 0 waits at 0RECV_B0 for rank 1, which is at 1RECV_F0\n"
        "rank 1 waits at 1RECV_F0 for rank 0, which is at 0RECV_B0\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"kind": "dualpipe", "num_ranks": 2, "num_microbatches": 2}, "E551"),
        ({"kind": "1f1b", "num_ranks": 2, "num_microbatches": 0}, "E551"),
        ({"kind": "1f1b", "num_ranks": 2, "num_microbatches": 2, "stages_per_rank": 2}, "E551"),
        ({"kind": "1f1b", "num_ranks": 2, "num_microbatches": 2, "edges": [(1, 0)]}, "E551"),
    ],
)
def test_requests_that_make_no_sense(arguments: dict[str, object], code: str) -> None:
    with pytest.raises(sw.ConfigError) as caught:
        make_schedule(**arguments)
    assert caught.value.code == code


def test_computations_that_wait_in_a_circle() -> None:
    with pytest.raises(sw.ConfigError, match="E552"):
        add_transfers(
            [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0", "1B1"]],
            rank_of_stage=[0, 1],
            edges=[(0, 1)],
            num_microbatches=2,
        )


def test_text_that_is_no_action() -> None:
    with pytest.raises(sw.ConfigError, match="E553"):
        Action("0UNSHARD")
