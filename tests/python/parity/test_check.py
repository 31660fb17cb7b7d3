"""The static checker on hand-made programs: what is right passes, what is broken is refused."""

import dataclasses

import pytest
from tests.python.parity.replicated_table import replicated_table, round_trip_table
from tests.python.parity.test_lowering import build, step

from shardwright.capture import capture
from shardwright.errors import InternalError
from shardwright.lowering.check import check_program
from shardwright.lowering.program import Program


@pytest.fixture(scope="module")
def graph():
    return capture(step, build())


def test_a_replicated_program_passes(graph):
    report = check_program(Program(graph, replicated_table(graph, (2,))))
    assert report.unknown == ()
    assert report.num_checked > 50


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_conversions_that_cancel_pass(graph, mesh, seed):
    assert check_program(Program(graph, round_trip_table(graph, mesh, seed))).unknown == ()


def broken(table, index, **changes):
    """The table with fields of one conversion changed."""
    instructions = list(table.instructions)
    reshard = dataclasses.replace(instructions[index].reshard, **changes)
    instructions[index] = dataclasses.replace(instructions[index], reshard=reshard)
    return dataclasses.replace(table, instructions=tuple(instructions))


def find(table, kind, **wanted):
    return next(
        i
        for i, ins in enumerate(table.instructions)
        if ins.reshard is not None
        and ins.reshard.kind == kind
        and all(getattr(ins.reshard, k) == v for k, v in wanted.items())
    )


CASES = [
    ("all_reduce", {"kind": "all_gather", "dim": 0}),
    ("all_reduce", {"reduce": "max"}),
    ("all_gather", {"axis": 1}),
    ("all_gather", {"outer": 2}),
    ("mask", {"kind": "slice", "dim": 0}),
    ("slice", {"outer": 2}),
    ("reduce_scatter", {"kind": "slice"}),
    ("reduce_scatter", {"axis": 1}),
]


@pytest.mark.parametrize(("kind", "changes"), CASES)
def test_a_changed_conversion_is_refused(graph, kind, changes):
    table = round_trip_table(graph, (2, 2), 5)
    wanted = {"axis": 0} if "axis" in changes else {}
    index = find(table, kind, **wanted)
    with pytest.raises(InternalError, match="E945"):
        check_program(Program(graph, broken(table, index, **changes)))


def test_reading_another_value_is_refused(graph):
    table = replicated_table(graph, (2,))
    index, add = next(
        (i, ins)
        for i, ins in enumerate(table.instructions)
        if ins.op == "aten.mul.Tensor" and len(set(ins.sources())) == 2
    )
    swapped = dataclasses.replace(add, args=(add.args[1], add.args[0]))
    instructions = (*table.instructions[:index], swapped, *table.instructions[index + 1 :])
    changed = dataclasses.replace(table, instructions=instructions)
    with pytest.raises(InternalError, match="the graph reads"):
        check_program(Program(graph, changed))


def test_an_op_without_a_rule_is_reported_not_passed(graph, monkeypatch):
    from shardwright.lowering import check_rules

    monkeypatch.delitem(check_rules.FAMILIES, "aten.mm")
    report = check_program(Program(graph, replicated_table(graph, (2,))))
    assert report.unknown
    assert all(text.startswith("aten.mm.default (") for text in report.unknown)
