"""The instructions the planner emits: a Program where it is to run, else what crosses its ends."""

from __future__ import annotations

from functools import cached_property

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.lowering.crossing import SEND
from shardwright.lowering.from_core import ref_from_core, table_from_core, tensor_from_core
from shardwright.lowering.program import Program
from shardwright.lowering.table import LocalRef, LocalTensor
from shardwright.plan import Plan
from shardwright.planning import sharded_graph


class EmittedProgram:
    """What a plan becomes, as the planner has it.

    Args:
        step_graph: the step the plan was made for.
        plan: what to do.

    Raises:
        PlanError: E311, E314 when the plan does not fit the step.
    """

    def __init__(self, step_graph: StepGraph, plan: Plan) -> None:
        graph = sharded_graph(step_graph)
        self._step_graph = step_graph
        self._names = _core.node_names(graph)
        self._table = _core.emit_program(graph, plan.to_core(graph))

    @cached_property
    def program(self) -> Program:
        """The same in Python, which sections and checks are made of."""
        from shardwright.lowering import shard_ops as _shard_ops  # noqa: F401  (registers the ops)

        return Program(self._step_graph, table_from_core(self._table, self._names))

    @cached_property
    def received(self) -> dict[str, tuple[LocalRef, LocalTensor]]:
        """The inputs that are read, by name: input instruction and local form."""
        names = {
            node.name: spec.name
            for node, spec in zip(
                self._step_graph.placeholders, self._step_graph.inputs, strict=True
            )
        }
        return {
            names[self._names[ins.node]]: (LocalRef(index), tensor_from_core(ins.outputs[0]))
            for index, ins in enumerate(self._table.instructions)
            if ins.kind == "input"
        }

    @cached_property
    def sent(self) -> dict[str, tuple[LocalRef, LocalTensor]]:
        """Values for other stages, by the name that `meta["sent"]` of their marks has."""
        marks = {
            node.name: node.meta["sent"]
            for node in self._step_graph.graph_module.graph.nodes
            if "sent" in node.meta
        }
        instructions = self._table.instructions
        found = {}
        for instruction in instructions:
            if instruction.op == SEND:
                (ref,) = (ref_from_core(arg) for arg in instruction.args)
                tensor = instructions[ref.instruction].outputs[ref.output]
                found[marks[self._names[instruction.node]]] = ref, tensor_from_core(tensor)
        return found


def lower(step_graph: StepGraph, plan: Plan) -> Program:
    """The program of a plan.

    Args:
        step_graph: the step the plan was made for.
        plan: what to do.

    Raises:
        PlanError: E311, E314 when the plan does not fit the step.
    """
    return EmittedProgram(step_graph, plan).program
