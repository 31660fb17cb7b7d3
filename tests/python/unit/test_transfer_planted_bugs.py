"""The oracle of transfers is checked itself: each planted bug must be caught."""

import dataclasses

import pytest
import torch
from tests.python.unit.test_transfer import cluster, submesh
from tests.python.unit.transfer_oracle import (
    TransferError,
    check_transfer,
    in_blocking_order,
    shards_of,
)

from shardwright import _core
from shardwright.runtime.simulated_transfer import simulate_transfer

R = _core.Placement.replicate()
S0, S1 = _core.Placement.shard(0), _core.Placement.shard(1)
ATOMS = _core.TensorAtoms([24, 48], [[0], [1]])
ON = cluster(8, 4)
SOURCE, TARGET = submesh((2, 4), 0, ON), submesh((2, 4), 8, ON)
SPECS = [S1, S0], [R, R]  # every target gathers eight tiles of either source host


@dataclasses.dataclass
class Step:
    kind: str
    source_rank: int
    target_rank: int
    crosses_hosts: bool
    bytes: int
    copies: list


@dataclasses.dataclass
class Plan:
    steps: list
    source_sizes: list
    target_sizes: list
    target_ranks: list
    target_shape: list


def plan() -> Plan:
    found = _core.plan_transfer(ATOMS, "float32", SPECS[0], SOURCE, SPECS[1], TARGET, ON)
    steps = [Step(**{f.name: getattr(s, f.name) for f in dataclasses.fields(Step)})
             for s in found.steps]  # fmt: skip
    rest = {f.name: getattr(found, f.name) for f in dataclasses.fields(Plan)[1:]}
    return Plan(steps=steps, **rest)


def check(steps) -> None:
    check_transfer(ATOMS, SPECS[0], SOURCE, SPECS[1], TARGET, steps)


def first(steps, kind: str) -> Step:
    return next(step for step in steps if step.kind == kind)


def shift(region):
    """The region one element further along its last atom, or one back."""
    *rest, (begin, size) = region
    return [*rest, (begin - 1 if begin > 0 else begin + 1, size)]


def wrong_source_region(steps):
    step = first(steps, "send")
    step.copies = [(shift(taken), put) for taken, put in step.copies]


def wrong_target_region(steps):
    step = first(steps, "send")
    step.copies = [(taken, shift(put)) for taken, put in step.copies]


def wrong_gathered_region(steps):
    step = first(steps, "gather")
    step.copies = [(shift(taken), put) for taken, put in step.copies]


def wrong_target(steps):
    sends = [step for step in steps if step.kind == "send"]
    other = next(s for s in sends if s.target_rank != sends[0].target_rank)
    sends[0].target_rank, other.target_rank = other.target_rank, sends[0].target_rank


def wrong_sender(steps):
    sends = [step for step in steps if step.kind == "send"]
    other = next(s for s in sends if s.source_rank != sends[0].source_rank)
    sends[0].source_rank, other.source_rank = other.source_rank, sends[0].source_rank


def gathers_before_sends(steps):
    steps.sort(key=lambda step: step.kind)


def one_gather_too_early(steps):
    step = first(steps, "gather")
    steps.remove(step)
    steps.insert(0, step)


def lost_send(steps):
    steps.remove(first(steps, "send"))


def lost_gather(steps):
    steps.remove(first(steps, "gather"))


def doubled_send(steps):
    step = first(steps, "send")
    steps.insert(steps.index(step), dataclasses.replace(step))


def gather_as_second_send(steps):
    """A rank gets from the source's host what its neighbour already received."""
    step = first(steps, "gather")
    brought = next(s for s in steps if s.kind == "send" and s.target_rank == step.source_rank)
    step.kind, step.source_rank, step.crosses_hosts = "send", brought.source_rank, True
    step.copies, step.bytes = brought.copies, brought.bytes


def shorter_copy(steps):
    step = first(steps, "send")
    (taken, put), *rest = step.copies
    begin, size = taken[0]
    step.copies = [([(begin, size - 1), *taken[1:]], [(put[0][0], size - 1), *put[1:]]), *rest]


def miscounted_bytes(steps):
    first(steps, "send").bytes += 4


def lost_copy_of_a_message(steps):
    step = next(s for s in steps if len(s.copies) > 1)
    step.copies = step.copies[:-1]


BUGS = [
    wrong_source_region, wrong_target_region, wrong_gathered_region, wrong_target, wrong_sender,
    gathers_before_sends, one_gather_too_early, lost_send, lost_gather, doubled_send,
    gather_as_second_send, shorter_copy, miscounted_bytes, lost_copy_of_a_message,
]  # fmt: skip
# They bring the right values twice, another way or count wrongly: results alone do not show them.
INVISIBLE_IN_RESULTS = (doubled_send, gather_as_second_send, miscounted_bytes)


def test_the_plan_without_bugs_passes():
    check(plan().steps)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug):
    changed = plan()
    bug(changed.steps)
    with pytest.raises(TransferError):
        check(changed.steps)


@pytest.mark.parametrize(
    "bug", [b for b in BUGS if b not in INVISIBLE_IN_RESULTS], ids=lambda bug: bug.__name__
)
def test_a_planted_bug_shows_in_the_results(bug):
    changed = plan()
    bug(changed.steps)
    whole = torch.arange(24 * 48, dtype=torch.float32).view(24, 48)
    given = shards_of(whole.numpy(), ATOMS, SPECS[0], SOURCE)
    expected = shards_of(whole.numpy(), ATOMS, SPECS[1], TARGET)
    # Memory that happens to hold the right values must not hide a bug.
    torch.use_deterministic_algorithms(True)
    try:
        result = simulate_transfer(changed, {r: torch.from_numpy(s) for r, s in given.items()})
    except RuntimeError as error:
        assert "exceeds dimension size" in str(error)  # noqa: PT017
        return
    finally:
        torch.use_deterministic_algorithms(False)
    assert any(not torch.equal(result[r], torch.from_numpy(part)) for r, part in expected.items())


def test_ranks_that_wait_for_each_other_are_found():
    # Both ranks want to receive first: orders that differ between ranks can stall.
    steps = plan().steps
    gathers = [s for s in steps if s.kind == "gather"]
    there = gathers[0]
    back = next(
        s for s in gathers
        if (s.source_rank, s.target_rank) == (there.target_rank, there.source_rank)
    )  # fmt: skip
    with pytest.raises(TransferError, match="wait for each other"):
        list(
            in_blocking_order({there.source_rank: [there, back], there.target_rank: [back, there]})
        )
