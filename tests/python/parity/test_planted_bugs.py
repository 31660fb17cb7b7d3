"""The suite checked by planted bugs: parity and the static checker must catch every one."""

import math

import pytest
import torch
from tests.python.parity.bug_net import make_step
from tests.python.parity.clusters import slow_compute
from tests.python.parity.planted_bugs import BUGS, SPECIAL_BUGS
from tests.python.parity.random_plan import RandomPlanner

import shardwright as sw
from shardwright import _core
from shardwright.capture import capture
from shardwright.graph_table import to_core_graph
from shardwright.lowering.check import check_program
from shardwright.lowering.emitted import lower
from shardwright.lowering.from_core import table_from_core
from shardwright.lowering.program import Program
from shardwright.lowering.table import RankInt
from shardwright.planning import sharded_graph
from shardwright.testing import run_parity


@pytest.fixture(scope="module")
def graph():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield capture(*make_step())
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def table(graph):
    plan = sw.plan(graph, mesh=(2, 2), cluster=slow_compute(4), time_limit_s=20)
    return lower(graph, plan).table


def has_mask(table):
    return any(i.reshard is not None and i.reshard.kind == "mask" for i in table.instructions)


def has_offset(table):
    return any(
        isinstance(a, RankInt) and any(a.per_axis) and i.op == "shardwright.embedding_shard.default"
        for i in table.instructions
        for a in i.args
    )


@pytest.fixture(scope="module")
def random_tables(graph):
    """Programs of random plans: one with an offset, one with a mask."""
    sharded = sharded_graph(graph)
    planner = RandomPlanner(to_core_graph(graph), sharded, (2,))
    names = [node["name"] for node in _core.describe_nodes(sharded)]
    found = {}
    for seed in range(60):
        table = table_from_core(_core.emit_program(sharded, planner.draw(seed)), names)
        if has_offset(table):
            found.setdefault("offset", table)
        if has_mask(table):
            found.setdefault("mask", table)
        if len(found) == 2:
            return found
    raise AssertionError(f"only found {list(found)}")


def parity_error(graph, table, steps=2):
    """Largest error; infinite when the program does not even run."""
    try:
        return run_parity(make_step, Program(graph, table), steps=steps).max_rel_error
    except (RuntimeError, IndexError, sw.InternalError):
        return math.inf


def test_at_least_25_bugs_are_planted():
    assert len(BUGS) + len(SPECIAL_BUGS) >= 25


def test_the_sound_program_passes_both(graph, table):
    assert parity_error(graph, table, steps=3) < 1e-12
    assert check_program(Program(graph, table)).unknown == ()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(graph, table, name):
    broken = BUGS[name](table)
    assert broken != table
    assert parity_error(graph, broken) > 1e-9
    with pytest.raises(sw.InternalError, match="E945"):
        check_program(Program(graph, broken))


@pytest.mark.parametrize("name", SPECIAL_BUGS)
def test_a_planted_bug_of_a_rare_program_is_caught(graph, random_tables, name):
    kind, bug = SPECIAL_BUGS[name]
    sound = random_tables[kind]
    assert parity_error(graph, sound) < 1e-12
    assert check_program(Program(graph, sound)).unknown == ()
    broken = bug(sound)
    assert parity_error(graph, broken) > 1e-9
    with pytest.raises(sw.InternalError, match="E945"):
        check_program(Program(graph, broken))
