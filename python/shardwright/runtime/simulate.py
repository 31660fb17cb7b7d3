"""All ranks of any mesh in one process, in lock-step, for tests and checks.

Every rank's section graphs run node by node, all ranks at one node before the next. Collectives
are done here, in plain torch on the list of all ranks' tensors, summing in ascending order of
ranks; nothing of torch.distributed is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from shardwright.capture.reference import microbatch_value
from shardwright.errors import InternalError
from shardwright.lowering.arguments import parse_dtype
from shardwright.lowering.layout import join_parts, local_part
from shardwright.lowering.program import Program, RankProgram
from shardwright.lowering.table import LocalRef
from shardwright.runtime import collectives as _operators  # noqa: F401  (registers the ops)
from shardwright.runtime.section_loop import SectionRunner, run_sections
from shardwright.runtime.simulated_collectives import SIMULATED

RankValues = list[Any]
Observer = Callable[[int, Sequence[Any], int], None]


class Simulation:
    """A program on simulated ranks, with their state.

    Attributes:
        program: what runs.
        state: per graph input that lives on from step to step the shards of all ranks.
        counts: collectives issued so far, by kind, one per instruction executed.
        bytes: by kind, the V of the cost formula.
    """

    def __init__(self, program: Program, device: torch.device | None = None) -> None:
        self.program = program
        self._device = torch.device("cpu") if device is None else device
        axes = [f"axis{axis}" for axis in range(len(program.table.mesh_shape))]
        self.ranks: list[RankProgram] = [
            program.for_rank(rank, axes, self._device) for rank in range(program.table.num_ranks)
        ]
        self.state: dict[int, list[Tensor]] = {}
        self.counts: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def load(self, index: int, whole: Tensor) -> None:
        """Gives graph input `index` its value, whole; every rank keeps its shard."""
        self.state[index] = self._parts(index, whole)

    def whole(self, index: int) -> Tensor:
        """Present value of graph input `index`, joined from the shards of all ranks."""
        tensor = self.program.input_tensor(index)
        parts = self.state[index]
        if tensor is None:
            return parts[0]
        return join_parts(parts, tensor, self.program.table.mesh_shape)

    def replicas_differ(self, index: int) -> bool:
        """Whether ranks that should hold equal shards of an input do not, bit by bit."""
        tensor = self.program.input_tensor(index)
        if tensor is None:
            return False
        seen: dict[tuple[int, ...], Tensor] = {}
        for rank, part in enumerate(self.state[index]):
            coordinate = self.program.table.coordinate(rank)
            key = tuple(
                c if p.kind == "S" else 0 for p, c in zip(tensor.spec, coordinate, strict=True)
            )
            if key in seen and not _same_bits(seen[key], part):
                return True
            seen[key] = part
        return False

    def step(self, passing: Mapping[int, Tensor], observer: Observer | None = None) -> list[Tensor]:
        """Runs one step.

        Args:
            passing: whole values of the graph inputs that are fed at every step.
            observer: called before each compute instruction with its index, its arguments and the
                rank.

        Returns:
            The results, joined.
        """
        inputs = [self.inputs(passing, n) for n in range(self.program.num_microbatches)]
        results = run_sections(self.program, inputs, self.runner(observer))
        table = self.program.table
        refs = [output.value for output in table.outputs if output.updates < 0]
        return [
            join_parts(parts, table.tensor(ref), table.mesh_shape)
            for ref, parts in zip(refs, results, strict=True)
        ]

    def runner(self, observer: Observer | None = None) -> SectionRunner[RankValues]:
        """How the sections run on all ranks."""
        return SectionRunner(
            lambda number, values: self._run(number, values, observer), self._zeros, _joined
        )

    def inputs(self, passing: Mapping[int, Tensor], microbatch: int) -> dict[LocalRef, RankValues]:
        """Shards of the inputs that are not from other stages, in one microbatch."""
        inputs: dict[LocalRef, RankValues] = {}
        for index, instruction in enumerate(self.program.input_instructions):
            if instruction is None or self.program.inputs[index].kind == "boundary":
                continue
            if index in passing:
                graph = self.program.step_graph
                value = microbatch_value(graph, index, passing[index], microbatch)
                inputs[LocalRef(instruction)] = self._parts(index, value)
            else:
                inputs[LocalRef(instruction)] = list(self.state[index])
        return inputs

    def _zeros(self, ref: LocalRef) -> RankValues:
        tensor = self.program.table.tensor(ref)
        dtype = parse_dtype(tensor.dtype)
        return [
            torch.zeros(tensor.local_shape, dtype=dtype, device=self._device) for _ in self.ranks
        ]

    def _parts(self, index: int, whole: Tensor) -> list[Tensor]:
        tensor = self.program.input_tensor(index)
        ranks = range(self.program.table.num_ranks)
        if tensor is None or tensor.global_shape == ():
            return [whole.detach().clone() for _ in ranks]
        return [
            local_part(whole, tensor, self.program.table.mesh_shape, rank.coordinate)
            for rank in self.ranks
        ]

    def _run(
        self, number: int, values: list[RankValues], observer: Observer | None
    ) -> list[RankValues]:
        """One section on all ranks."""
        graphs = [rank.sections[number].graph_module.graph for rank in self.ranks]
        lanes = [list(graph.nodes) for graph in graphs]
        _check_same_shape(lanes)
        environments: list[dict[fx.Node, Any]] = [{} for _ in lanes]
        last_use = [_last_uses(lane) for lane in lanes]
        taken = values[::-1]
        values.clear()
        result: list[RankValues] = []
        with torch.no_grad():
            for position, model in enumerate(lanes[0]):
                nodes = [lane[position] for lane in lanes]
                if model.op == "placeholder":
                    outcome = taken.pop()
                elif model.op == "output":
                    gathered = [
                        fx.node.map_arg(node.args[0], env.__getitem__)
                        for node, env in zip(nodes, environments, strict=True)
                    ]
                    result = [list(column) for column in zip(*gathered, strict=True)]
                    break
                else:
                    outcome = self._call(nodes, environments, observer)
                for rank, node in enumerate(nodes):
                    environments[rank][node] = outcome[rank]
                    for dead in last_use[rank].get(node, ()):
                        environments[rank].pop(dead, None)
        return result

    def _call(
        self,
        nodes: Sequence[fx.Node],
        environments: Sequence[dict[fx.Node, Any]],
        observer: Observer | None,
    ) -> RankValues:
        arguments = [
            fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            for node, env in zip(nodes, environments, strict=True)
        ]
        target: Any = nodes[0].target
        name = str(target).removeprefix("shardwright.").removesuffix(".default")
        simulated = SIMULATED.get(name) if "shardwright." in str(target) else None
        if simulated is None:
            if observer is not None and "instruction" in nodes[0].meta:
                for rank, (args, _) in enumerate(arguments):
                    observer(nodes[0].meta["instruction"], args, rank)
            return [
                node.target(*args, **kwargs)  # type: ignore[operator]
                for node, (args, kwargs) in zip(nodes, arguments, strict=True)
            ]
        if name in ("shard_slice", "mask_partial"):
            return [simulated([args[0]], [0], args[1:])[0] for args, _ in arguments]
        return self._collective(name, nodes[0], [args for args, _ in arguments])

    def _collective(
        self, name: str, node: fx.Node, arguments: Sequence[tuple[Any, ...]]
    ) -> RankValues:
        table = self.program.table
        reshard = table.instructions[node.meta["instruction"]].reshard
        if reshard is not None:
            self.counts[name] += 1
            self.bytes[name] += reshard.bytes
        result: RankValues = [None] * table.num_ranks
        axis = int(str(arguments[0][-1]).removeprefix("axis"))
        for rank in range(table.num_ranks):
            if result[rank] is not None:
                continue
            group = table.axis_group(rank, axis)
            tensors = [arguments[member][0] for member in group]
            outcome = SIMULATED[name](tensors, range(len(group)), arguments[rank][1:-1])
            for member, value in zip(group, outcome, strict=True):
                result[member] = value
        return result


def _joined(parts: Sequence[RankValues], dim: int) -> RankValues:
    return [torch.cat(list(of_rank), dim) for of_rank in zip(*parts, strict=True)]


def _last_uses(lane: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    last: dict[fx.Node, fx.Node] = {}
    for node in lane:
        for used in node.all_input_nodes:
            last[used] = node
    result: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        result.setdefault(node, []).append(used)
    return result


def _check_same_shape(lanes: Sequence[Sequence[fx.Node]]) -> None:
    first = [(node.op, str(node.target)) for node in lanes[0]]
    for rank, lane in enumerate(lanes):
        if [(node.op, str(node.target)) for node in lane] != first:
            raise InternalError(
                "the ranks of a program run different ops", code="E941", values=[f"rank {rank}"]
            )


def _same_bits(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(
        left.contiguous().flatten().view(torch.uint8),
        right.contiguous().flatten().view(torch.uint8),
    )
