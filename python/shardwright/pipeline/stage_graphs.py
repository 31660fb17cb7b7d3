"""One step graph cut into one per pipeline stage, and the values that go between them.

Each stage's graph is a StepGraph of its own: planner, lowering and static checker treat it like any
other. What a stage needs of others comes in as inputs of kind "boundary"; what others need of it is
marked by `shardwright.send`, whose operand may lie in any way on the stage's mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import fx

from shardwright.capture.step_graph import InputSpec, OutputSpec, StepGraph, uncompiled_module
from shardwright.errors import InternalError
from shardwright.pipeline.backward_split import nodes_not_for_others, split_convolutions
from shardwright.pipeline.fx_nodes import copied_node
from shardwright.pipeline.layers import EVERY_LAYER, assign_layers

When = Literal["start", "forward", "backward", "update"]
_ACCUMULATE = torch.ops.shardwright.accumulate.default
_SEND = torch.ops.shardwright.send.default
_ADD = torch.ops.aten.add.Tensor
_CAST = torch.ops.aten._to_copy.default
_RANK = {"forward": 0, "backward": 1, "update": 2}


@dataclass(frozen=True, order=True)
class Transfer:
    """One value that goes from one stage to another.

    Attributes:
        when: "forward" and "backward": once per microbatch, after that part of the source;
            "start": a stored parameter, once per step before all else; "update": once per step.
        round: of "update": rounds of the update, in which all stages alternate with transfers.
        source, target: stages.
        value: fx name of the value's node in the whole graph; input of that name in the target.
        parameter: of "start": name of the parameter.
    """

    when: When
    round: int
    source: int
    target: int
    value: str
    parameter: str = ""


@dataclass(frozen=True)
class StageGraphs:
    """A step in stages.

    Attributes:
        whole: the step.
        graphs: of every stage; its results are those of the whole step that it computes, in order,
            then one empty tensor per value that it sends.
        transfers: in the order in which they are sent within their part of the step.
        result_stages: per result of the whole step the stage that computes it.
        num_rounds: rounds of the update.
        splits_backward: whether backward is in two parts: nodes that gradients for other stages
            need first (`meta["round"]` 0), all others, those of weight gradients, after them (1).
    """

    whole: StepGraph
    graphs: tuple[StepGraph, ...]
    transfers: tuple[Transfer, ...]
    result_stages: tuple[int, ...]
    num_rounds: int
    splits_backward: bool = False


def split_stages(
    step_graph: StepGraph, starts: Sequence[str], *, splits_backward: bool = False
) -> StageGraphs:
    """Cuts a step into stages.

    Args:
        step_graph: the step, in microbatches or not.
        starts: what begins the second, third, ... stage: fx names of forward nodes, such as
            `Layers.begins`, or names of modules, which stand for their first forward node.
        splits_backward: whether what gradients for other stages need comes first in each stage's
            backward, see `StageGraphs`.

    Raises:
        ConfigError: E527 for starts that are none; PlanError: E334, see docs/errors.md.
    """
    stages: Mapping[fx.Node, int] = assign_layers(step_graph, starts)
    if splits_backward:
        split = split_convolutions(step_graph, stages)
        if split is not step_graph:
            step_graph, stages = split, assign_layers(split, starts)
    step_graph, stages = _split_sums(step_graph, stages)
    return _Cutter(step_graph, stages, len(starts) + 1, splits_backward).cut()


def _split_sums(
    step_graph: StepGraph, stages: Mapping[fx.Node, int]
) -> tuple[StepGraph, Mapping[fx.Node, int]]:
    """Adds gradients of several stages after their sums over microbatches, not in each.

    So a tied weight's gradients travel once per step.

    Returns:
        The step with the stages of its nodes; what was given where there is nothing to do.
    """
    dropped: set[fx.Node] = set()
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in step_graph.graph_module.graph.nodes:
        if node.target is _ACCUMULATE:
            sums: list[fx.Node] = []
            source = node.args[0]
            added = source.args[0] if source.target is _CAST else source
            if len(source.users) == 1 and (terms := _terms(added, stages, sums)) is not None:
                found[node] = terms
                dropped.update((source, *sums))
    if not found:
        return step_graph, stages
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    new_stages: dict[fx.Node, int] = {}
    for node in step_graph.graph_module.graph.nodes:
        if node in found:
            parts = [(term, copies[term], stages[term]) for term in found[node]]
            copies[node] = _sum_of_totals(graph, node, parts, new_stages)
        elif node not in dropped:
            copies[node] = copied_node(graph, node, copies.__getitem__)
        if node in stages and node in copies:
            new_stages[copies[node]] = stages[node]
    new = dataclasses.replace(step_graph, graph_module=uncompiled_module(graph))
    return new, new_stages


def _terms(
    node: fx.Node, stages: Mapping[fx.Node, int], sums: list[fx.Node]
) -> list[fx.Node] | None:
    """Terms of a sum over stages that nothing else reads; notes its additions in `sums`."""
    if node.target is not _ADD or node.kwargs or len(node.users) != 1 or len(node.args) != 2:
        return None
    left, right = node.args
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    if left.meta["val"].shape != right.meta["val"].shape or stages[left] == stages[right]:
        return None
    sums.append(node)
    return [t for term in (left, right) for t in _terms(term, stages, sums) or [term]]


def _sum_of_totals(
    graph: fx.Graph,
    accumulate: fx.Node,
    terms: Sequence[tuple[fx.Node, fx.Node, int]],
    stages: dict[fx.Node, int],
) -> fx.Node:
    """The sums over microbatches of terms (old node, new node, stage), added up."""
    source: Any = accumulate.args[0]
    totals: list[fx.Node] = []
    for term, copy, stage in terms:
        value = copy
        if source.target is _CAST:
            value = graph.call_function(_CAST, (copy,), dict(source.kwargs))
            value.meta = {**term.meta, "val": source.meta["val"]}
        total = graph.call_function(_ACCUMULATE, (value,))
        total.meta = {**term.meta, "phase": "update", "val": accumulate.meta["val"]}
        stages[value] = stages[total] = stage
        totals.append(total)
    result = totals[0]
    first = min(stage for _, _, stage in terms if stage != EVERY_LAYER)
    for total in totals[1:]:
        result = graph.call_function(_ADD, (result, total))
        result.meta = dict(accumulate.meta)
        stages[result] = first
    return result


class _Cutter:
    def __init__(
        self,
        step_graph: StepGraph,
        stages: Mapping[fx.Node, int],
        num_stages: int,
        splits_backward: bool,
    ) -> None:
        self.step = step_graph
        self.splits_backward = splits_backward
        self.stages = stages
        self.num_stages = num_stages
        self.nodes: list[fx.Node] = list(step_graph.graph_module.graph.nodes)
        self.inputs = step_graph.placeholders
        self.results = step_graph.output_nodes
        self.spec = dict(zip(self.inputs, step_graph.inputs, strict=True))
        self.number = {node: i for i, node in enumerate(self.nodes)}
        self.rounds: dict[fx.Node, int] = {}
        self.transfers: dict[tuple[fx.Node, int], Transfer] = {}
        self.output_stages: list[int] = []

    def cut(self) -> StageGraphs:
        """All stages."""
        for node in self.nodes:
            if node.op == "call_function":
                self._number_round(node)
                if self.stages[node] != EVERY_LAYER:
                    for operand in node.all_input_nodes:
                        self._need(operand, self.stages[node], _phase(node))
        self._place_outputs()
        transfers = tuple(
            sorted(
                self.transfers.values(),
                key=lambda t: (t.when, t.round, t.source, t.target, t.value),
            )
        )
        graphs = tuple(self._write(stage) for stage in range(self.num_stages))
        results = [
            stage
            for stage, spec in zip(self.output_stages, self.step.outputs, strict=True)
            if spec.updates is None
        ]
        num_rounds = 1 + max(self.rounds.values(), default=0)
        return StageGraphs(
            self.step, graphs, transfers, tuple(results), num_rounds, self.splits_backward
        )

    def _number_round(self, node: fx.Node) -> None:
        """How many exchanges between stages an update node has to wait for."""
        stage = self.stages[node]
        found = 0
        for operand in node.all_input_nodes:
            of = self.stages[operand]
            crosses = EVERY_LAYER not in (stage, of) and of != stage
            is_update = operand.op == "call_function" and _phase(operand) == "update"
            late = crosses and _phase(node) == "update" and operand.op == "call_function"
            found = max(found, (self.rounds[operand] if is_update else 0) + late)
        self.rounds[node] = found if _phase(node) == "update" else 0

    def _need(self, value: fx.Node, stage: int, phase: str) -> None:
        """`value` is read in `stage`: where it is made elsewhere it is sent there."""
        source = self.stages[value]
        if source in (EVERY_LAYER, stage):
            return
        when, number = self._when(value, source, stage, phase)
        name = self.spec[value].name if value.op == "placeholder" else ""
        new = Transfer(when, number, source, stage, value.name, name)
        known = self.transfers.get((value, stage))
        if known is None or _order(new) < _order(known):
            self.transfers[value, stage] = new

    def _when(self, value: fx.Node, source: int, stage: int, phase: str) -> tuple[When, int]:
        if value.op == "placeholder":
            return "start", 0
        if phase == "update":
            return "update", self.rounds[value]
        if _phase(value) == "forward" and source < stage:
            return "forward", 0
        if phase == "backward" and source > stage:
            return "backward", 0
        return self._refuse(value, source, phase, stage)

    @staticmethod
    def _refuse(value: fx.Node, source: int, phase: str, stage: int) -> NoReturn:
        raise InternalError(
            "a stage needs what a later part of the step makes.",
            code="E944",
            values=[f"{value.name} of stage {source}, in {phase} of stage {stage}"],
            advice="report this with the model; other stage_boundaries may do",
        )

    def _place_outputs(self) -> None:
        for spec, node in zip(self.step.outputs, self.results, strict=True):
            stage = self.stages[node]
            if spec.updates is not None:
                stage = self.stages[self.inputs[spec.updates]]
                if self.stages[node] not in (stage, EVERY_LAYER):
                    self._refuse(node, self.stages[node], "update", stage)
            self.output_stages.append(max(stage, 0))

    def _write(self, stage: int) -> StepGraph:
        return _StageWriter(self, stage).write()


def _phase(node: fx.Node) -> str:
    return str(node.meta["phase"])


def _order(transfer: Transfer) -> tuple[int, int]:
    return ("start", "forward", "backward", "update").index(transfer.when), transfer.round


class _StageWriter:
    """Writes the graph of one stage."""

    def __init__(self, cutter: _Cutter, stage: int) -> None:
        self.cutter = cutter
        self.stage = stage
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.inputs: list[InputSpec] = []

    def write(self) -> StepGraph:
        cutter = self.cutter
        self.rank = self._ranks()
        incoming = {v: t for (v, stage), t in cutter.transfers.items() if stage == self.stage}
        for node, spec in cutter.spec.items():
            if node in self.rank and node not in incoming:
                self.copies[node] = self.graph.node_copy(node)
                self.inputs.append(spec)
        for node, transfer in incoming.items():
            boundary = self.graph.placeholder(f"{node.name}_received")
            boundary.meta = {**node.meta, "phase": "forward"}
            self.copies[node] = boundary
            # Gradients too where weight gradients may read them later.
            each = transfer.when == "forward" or (
                transfer.when == "backward" and cutter.splits_backward
            )
            self.inputs.append(
                InputSpec("boundary", node.name, meta=node.meta["val"], per_microbatch=each)
            )
        outgoing = self._outgoing()
        sends: list[fx.Node] = []
        for key, node in self._ordered(incoming, outgoing):
            if node in outgoing and key[3]:
                sends.append(self._send(node, outgoing[node]))
            else:
                self.copies[node] = copied_node(self.graph, node, self.copies.__getitem__)
                self.copies[node].meta = {
                    **node.meta, "phase": _PHASES[key[0]], "round": key[1],
                }  # fmt: skip
        return self._finish(sends)

    def _ranks(self) -> dict[fx.Node, int]:
        """What this stage has: nodes -> part of the step in which it needs them first."""
        cutter, stage = self.cutter, self.stage
        ranks: dict[fx.Node, int] = {}

        def need(node: fx.Node, rank: int) -> None:
            own = 0 if node.op == "placeholder" else _RANK[_phase(node)]
            ranks[node] = min(ranks.get(node, 2), rank, own)

        for number, node in enumerate(cutter.results):
            if cutter.output_stages[number] == stage:
                need(node, 2)
                updates = cutter.step.outputs[number].updates
                if updates is not None:
                    need(cutter.inputs[updates], 2)
        for node in cutter.spec:
            owned = cutter.stages[node] == stage
            fixed_here = cutter.stages[node] == EVERY_LAYER and (
                cutter.spec[node].kind in ("parameter", "buffer")
            )
            if owned or (fixed_here and not node.users and stage == 0):
                need(node, 2)
        for node in reversed(cutter.nodes):
            if node.op != "call_function":
                continue
            own = cutter.stages[node] == stage
            if not own and not (node in ranks and cutter.stages[node] == EVERY_LAYER):
                continue
            if own:
                need(node, 2)
            for operand in node.all_input_nodes:
                need(operand, ranks[node])
        return ranks

    def _outgoing(self) -> dict[fx.Node, Transfer]:
        """Earliest transfer of each value that others need; stored parameters need no mark."""
        outgoing: dict[fx.Node, Transfer] = {}
        for (node, _), transfer in self.cutter.transfers.items():
            if transfer.source == self.stage and transfer.when != "start":
                known = outgoing.get(node)
                if known is None or _order(transfer) < _order(known):
                    outgoing[node] = transfer
        return outgoing

    def _ordered(
        self, incoming: Mapping[fx.Node, Transfer], outgoing: Mapping[fx.Node, Transfer]
    ) -> list[tuple[tuple[int, int, int, bool], fx.Node]]:
        """Calls and sends: forward, then backward, then the update round by round."""
        late: set[fx.Node] = set()
        if self.cutter.splits_backward:
            late = nodes_not_for_others(
                (n for n, rank in self.rank.items() if rank == 1 and n.op == "call_function"),
                (n for n, transfer in outgoing.items() if transfer.when == "backward"),
            )
        order: list[tuple[tuple[int, int, int, bool], fx.Node]] = []
        for node, rank in self.rank.items():
            if node.op == "call_function" and node not in incoming:
                number = self.cutter.number[node]
                turn = self.cutter.rounds[node] if rank == 2 else int(node in late)
                order.append(((rank, turn, number, False), node))
        for node, transfer in outgoing.items():
            number = self.cutter.number[node]
            order.append(((_RANK[transfer.when], transfer.round, number, True), node))
        return sorted(order, key=lambda item: item[0])

    def _send(self, node: fx.Node, transfer: Transfer) -> fx.Node:
        mark = self.graph.call_function(_SEND, (self.copies[node],))
        val = node.meta["val"]
        with val.fake_mode:
            empty = torch.empty((0,), dtype=val.dtype)
        mark.meta = {
            **node.meta, "phase": transfer.when, "round": transfer.round, "val": empty,
            "sent": node.name,
        }  # fmt: skip
        return mark

    def _finish(self, sends: Sequence[fx.Node]) -> StepGraph:
        cutter = self.cutter
        values, specs = [], []
        position = {spec.name: i for i, spec in enumerate(self.inputs) if spec.kind != "boundary"}
        for number, node in enumerate(cutter.results):
            if cutter.output_stages[number] != self.stage:
                continue
            spec = cutter.step.outputs[number]
            if spec.updates is not None:
                spec = OutputSpec("update", position[cutter.step.inputs[spec.updates].name])
            values.append(self.copies[node])
            specs.append(spec)
        values += sends
        specs += [OutputSpec("result")] * len(sends)
        self.graph.output(values)
        self.graph.lint()
        names = {spec.name for spec in self.inputs if spec.kind == "constant"}
        return dataclasses.replace(
            cutter.step,
            graph_module=uncompiled_module(self.graph),
            inputs=tuple(self.inputs),
            outputs=tuple(specs),
            constants={n: v for n, v in cutter.step.constants.items() if n in names},
        )


_PHASES = ("forward", "backward", "update")
