"""The code that fx generates for a rank names every value it is given once."""

import math

import pytest
from tests.python.parity.clusters import slow_compute

from shardwright import zoo
from shardwright.capture import capture
from shardwright.lowering.emitted import lower
from shardwright.planning import plan


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_no_value_handed_to_a_section_is_renamed(mesh):
    # A renamed placeholder is assigned at the head of the code, in turn: of two outputs of one op
    # the second could take the name of the first before that was read.
    step, args = zoo.gpt_tiny()
    graph = capture(step, args)
    program = lower(graph, plan(graph, mesh=mesh, cluster=slow_compute(math.prod(mesh))))
    groups = [str(axis) for axis in range(len(mesh))]
    for section in program.for_rank(0, groups, "cpu").sections:
        names = [node.name for node in section.graph_module.graph.nodes if node.op == "placeholder"]
        targets = [
            node.target for node in section.graph_module.graph.nodes if node.op == "placeholder"
        ]
        assert names == targets
        assert len(set(names)) == len(names)
