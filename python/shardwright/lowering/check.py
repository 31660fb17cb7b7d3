"""The static checker: does a program compute its step graph's outputs?

Derives for every value which part of the whole tensor each rank holds and which reductions are
pending, from the meaning of the collectives and of the ops alone, and compares with what the
program's table says. Shares no code with planner, rules or emission. A program that passes has its
collectives, slices, masks and offsets right; that the ops' kernels are right is for parity tests.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from shardwright.errors import InternalError
from shardwright.lowering.check_families import Call
from shardwright.lowering.check_rules import family_of
from shardwright.lowering.held import CheckError, Held, UnknownOpError, declared, mesh_of
from shardwright.lowering.lattice import IrregularError, Lattice
from shardwright.lowering.program import Program
from shardwright.lowering.table import Instruction, LocalRef, RankInt, Reshard


@dataclass(frozen=True)
class CheckReport:
    """What a check covered.

    Attributes:
        num_checked: instructions whose results were derived.
        unknown: instructions whose op the checker does not know, as "op (node)"; what they return
            was taken from the table. Empty when the program is proven.
    """

    num_checked: int
    unknown: tuple[str, ...]


def check_program(program: Program) -> CheckReport:
    """Checks a program against its step graph.

    Raises:
        InternalError: E945 at the first instruction that does not hold, with node and reason.
    """
    return _Checker(program).run()


class _Checker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.table = program.table
        self.mesh = mesh_of(program.table)
        self.held: dict[LocalRef, Held] = {}
        self.meaning: dict[LocalRef, tuple[str, int]] = {}
        self.unknown: list[str] = []

    def run(self) -> CheckReport:
        """Checks all instructions, then the outputs."""
        for index, instruction in enumerate(self.table.instructions):
            try:
                self._instruction(index, instruction)
            except (CheckError, IrregularError) as failure:
                self._fail(str(failure), index, instruction)
        self._outputs()
        count = len(self.table.instructions) - len(self.unknown)
        return CheckReport(count, tuple(self.unknown))

    def _fail(self, reason: str, index: int, instruction: Instruction) -> None:
        node = self.program.graph_node(instruction.node)
        what = instruction.op or (instruction.reshard.kind if instruction.reshard else "input")
        raise InternalError(
            f"a program does not compute its step: {reason}.",
            code="E945",
            values=[f"instruction {index}: {what}, for graph node {instruction.node}"],
            where=str(node.meta.get("source", "")),
            advice="report this with the plan (train_step.plan.save); another plan may do",
        )

    def _instruction(self, index: int, instruction: Instruction) -> None:
        results = [declared(tensor, self.mesh) for tensor in instruction.outputs]
        if instruction.kind == "input":
            self._input(index, instruction, results[0])
            return
        if instruction.reshard is not None:
            derived = [self._reshard(instruction.reshard)]
            self.meaning[LocalRef(index)] = self.meaning[instruction.reshard.source]
        else:
            derived = self._compute(index, instruction, results)
            for output in range(len(results)):
                self.meaning[LocalRef(index, output)] = (instruction.node, output)
        for output, (held, said) in enumerate(zip(derived, results, strict=True)):
            self._compare(held, said, instruction, output)
            self.held[LocalRef(index, output)] = held

    def _input(self, index: int, instruction: Instruction, said: Held) -> None:
        node = self.program.graph_node(instruction.node)
        if node.op != "placeholder":
            raise CheckError("is no input of the graph")
        if any(said.partial):
            raise CheckError("an input is pending")
        shape = tuple(node.meta["val"].shape)
        if said.shape != shape:
            raise CheckError(f"an input has shape {said.shape}, not {shape}")
        self.held[LocalRef(index)] = said
        self.meaning[LocalRef(index)] = (instruction.node, 0)

    def _compare(self, held: Held, said: Held, instruction: Instruction, output: int) -> None:
        if said.shape == (0,):  # stands for a result that is not computed (output_mask)
            return
        if held.shape != said.shape:
            raise CheckError(f"result {output} has shape {held.shape}, not {said.shape}")
        if held.partial != said.partial and not held.is_zero:
            raise CheckError(f"result {output} is pending {held.partial}, not {said.partial}")
        for dim, (left, right) in enumerate(zip(held.dims, said.dims, strict=True)):
            if left != right:
                raise CheckError(f"dim {dim} of result {output} is divided in another way")
        local = instruction.outputs[output].local_shape
        for rank in range(len(self.mesh.coordinates)):
            if held.local_shape(rank) != local:
                raise CheckError(f"a shard has shape {held.local_shape(rank)}, not {local}")

    def _reshard(self, step: Reshard) -> Held:
        held = self.held[step.source]
        size = self.mesh.shape[step.axis]
        pending = held.partial[step.axis]
        places = {
            "all_gather": (step.dim,), "slice": (step.dim,), "reduce_scatter": (step.dim,),
            "all_to_all": (step.dim, step.to_dim),
        }.get(step.kind, ())  # fmt: skip
        if any(not 0 <= dim < len(held.dims) for dim in places):
            raise CheckError(f"converts dim {places} of a value of {len(held.dims)} dims")
        if step.kind in ("all_reduce", "reduce_scatter") and pending != step.reduce:
            raise CheckError(f"reduces with {step.reduce} what is pending {pending or 'nothing'}")
        if step.kind in ("all_gather", "all_to_all") and pending:
            raise CheckError(f"moves parts of a value that is pending {pending}")
        varying = {a for values in held.dims for a in self.mesh.varying(values)}
        if step.kind in ("mask", "slice", "all_reduce", "reduce_scatter") and step.axis in varying:
            raise CheckError("treats different parts as copies")
        if step.kind == "mask" and pending:
            raise CheckError("masks a pending value")
        partial = list(held.partial)
        dims = list(held.dims)
        if step.kind == "mask":
            partial[step.axis] = "sum"
        elif step.kind in ("all_reduce", "reduce_scatter"):
            partial[step.axis] = ""
        if step.kind in ("slice", "reduce_scatter"):
            dims[step.dim] = self._cut(dims[step.dim], step.axis, step.outer, size)
        elif step.kind == "all_gather":
            dims[step.dim] = self._joined(dims, step.dim, step.axis, step.outer)
        elif step.kind == "all_to_all":
            outer = step.outer
            if step.dim == step.to_dim and step.outer > step.to_outer:
                outer //= size
            # What rank r receives from each member is that member's part r.
            received = []
            for rank, coordinate in enumerate(self.mesh.coordinates):
                parts = [list(dims[d]) for d in range(len(dims))]
                for member in self.table.axis_group(rank, step.axis):
                    own = parts[step.to_dim][member]
                    cut = own.cut(step.to_outer, size, coordinate[step.axis])
                    parts[step.to_dim][member] = cut
                columns = [tuple(column) for column in parts]
                received.append(self._join_of(columns, step.dim, rank, step.axis, outer))
                if step.dim != step.to_dim:
                    self._same(columns, step.dim, rank, step.axis)
            if step.dim != step.to_dim:
                dims[step.to_dim] = self._cut(dims[step.to_dim], step.axis, step.to_outer, size)
            dims[step.dim] = tuple(received)
        return Held(held.shape, tuple(dims), tuple(partial), held.is_zero)

    def _cut(
        self, values: tuple[Lattice, ...], axis: int, outer: int, size: int
    ) -> tuple[Lattice, ...]:
        pairs = zip(values, self.mesh.coordinates, strict=True)
        return tuple(lattice.cut(outer, size, at[axis]) for lattice, at in pairs)

    def _joined(
        self, dims: Sequence[tuple[Lattice, ...]], dim: int, axis: int, outer: int
    ) -> tuple[Lattice, ...]:
        ranks = range(len(self.mesh.coordinates))
        for rank in ranks:
            self._same(dims, dim, rank, axis)
        return tuple(self._join_of(dims, dim, rank, axis, outer) for rank in ranks)

    def _join_of(
        self, dims: Sequence[tuple[Lattice, ...]], dim: int, rank: int, axis: int, outer: int
    ) -> Lattice:
        members = self.table.axis_group(rank, axis)
        return Lattice.joined([dims[dim][member] for member in members], outer)

    def _same(self, dims: Sequence[tuple[Lattice, ...]], dim: int, rank: int, axis: int) -> None:
        """Members hold the same part in all dims but one."""
        for member in self.table.axis_group(rank, axis):
            for d, values in enumerate(dims):
                if d != dim and values[member] != values[rank]:
                    raise CheckError("joins parts of different places")

    def _compute(self, index: int, instruction: Instruction, results: Sequence[Held]) -> list[Held]:
        node = self.program.graph_node(instruction.node)
        self._operands(instruction, node)
        call = Call(
            instruction.op,
            _with_tensors(instruction.args, node.args, self.held),
            [_evaluated(instruction.args, self.held, at) for at in self.mesh.coordinates],
            results,
            self.mesh,
        )
        family = family_of(instruction.op)
        if family is None:
            self.unknown.append(f"{instruction.op} ({instruction.node})")
            return list(results)
        try:
            derived = family(call)
        except UnknownOpError:
            self.unknown.append(f"{instruction.op} ({instruction.node})")
            return list(results)
        self._arguments(instruction, node, call)
        return derived

    def _operands(self, instruction: Instruction, node: fx.Node) -> None:
        """The instruction reads what the graph node reads."""
        wanted = [_graph_value(n) for n in _nodes_in((node.args, tuple(node.kwargs.values())))]
        found = [self.meaning[ref] for ref in instruction.sources()]
        if wanted != found:
            raise CheckError(f"reads {found}, the graph reads {wanted}")

    def _arguments(self, instruction: Instruction, node: fx.Node, call: Call) -> None:
        """Arguments are the graph's, but for those that the family has checked."""
        for position, value in enumerate(node.args):
            if position in call.localised or _nodes_in(value):
                continue
            if position >= len(instruction.args):
                raise CheckError(f"argument {position} is missing")
            if not _equal(value, instruction.args[position]):
                raise CheckError(f"argument {position} is {instruction.args[position]!r}")
        schema = getattr(node.target, "_schema", None)
        defaults = [] if schema is None else [a.default_value for a in schema.arguments]
        for position in range(len(node.args), len(instruction.args)):
            if position in call.localised:
                continue
            known = position < len(defaults)
            if not known or not _equal(defaults[position], instruction.args[position]):
                raise CheckError("has an argument that the graph does not have")

    def _outputs(self) -> None:
        """Results are whole, new values of inputs lie as the input does, each the graph's own."""
        nodes = self.program.step_graph.output_nodes
        specs = self.program.outputs
        last = len(self.table.instructions) - 1
        for number, (output, node) in enumerate(zip(self.table.outputs, nodes, strict=True)):
            instruction = self.table.instructions[output.value.instruction]
            index = output.value.instruction if output.value.instruction <= last else last
            if self.meaning[output.value] != _graph_value(node):
                self._fail(f"output {number} is not the graph's", index, instruction)
            held = self.held[output.value]
            updated = specs[number].updates
            if any(held.partial):
                self._fail(f"output {number} is pending", index, instruction)
            if updated is None:
                if (
                    any(self.mesh.varying(v) for v in held.dims)
                    or held.local_shape(0) != held.shape
                ):
                    self._fail(f"output {number} is not whole", index, instruction)
                continue
            if output.updates != self.program.input_instructions[updated]:
                self._fail(f"output {number} updates another input", index, instruction)
            if held.dims != self.held[LocalRef(output.updates)].dims:
                self._fail(f"output {number} is not divided as its input", index, instruction)


def _graph_value(node: fx.Node) -> tuple[str, int]:
    """Node and output that an fx node stands for; `getitem` picks an output."""
    if node.op == "call_function" and node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        return source.name, index
    return node.name, 0


def _nodes_in(value: Any) -> list[fx.Node]:
    if isinstance(value, fx.Node):
        return [value]
    if isinstance(value, (list, tuple)):
        return [node for item in value for node in _nodes_in(item)]
    return []


def _with_tensors(local: Any, graph: Any, held: dict[LocalRef, Held]) -> Any:
    """The graph's arguments with what is known of each tensor."""
    if isinstance(local, LocalRef):
        return held[local]
    if isinstance(graph, (list, tuple)) and isinstance(local, tuple) and _nodes_in(graph):
        return [_with_tensors(a, b, held) for a, b in zip(local, graph, strict=False)]
    return graph


def _evaluated(value: Any, held: dict[LocalRef, Held], coordinate: Sequence[int]) -> Any:
    if isinstance(value, LocalRef):
        return held[value]
    if isinstance(value, RankInt):
        return value.at(coordinate)
    if isinstance(value, tuple):
        return [_evaluated(item, held, coordinate) for item in value]
    return value


def _equal(graph: Any, local: Any) -> bool:
    if isinstance(graph, (list, tuple)):
        same = isinstance(local, tuple) and len(local) == len(graph)
        return same and all(_equal(a, b) for a, b in zip(graph, local, strict=True))
    if isinstance(graph, (bool, int, float, str)) or graph is None:
        return type(graph) is type(local) and (graph == local or graph != graph)
    return True  # dtypes and devices arrive as text
