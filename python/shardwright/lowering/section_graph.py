"""Writes one section of a program as an fx graph over the shards of one rank."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

from shardwright.lowering.arguments import torch_arguments
from shardwright.lowering.peephole import fuse_bias_add
from shardwright.lowering.storage import CopyBack
from shardwright.lowering.table import Instruction, LocalRef, Reshard
from shardwright.lowering.targets import in_place_target

if TYPE_CHECKING:
    from shardwright.lowering.program import Program, Section

_ATEN = torch.ops.aten


class ClearingCodeGen(CodeGen):
    """`forward(self, values)` empties its list first, so that values die with their last use."""

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Head of the generated function, see torch.fx.graph.CodeGen."""
        names = [v.split(":")[0].split("=")[0].strip() for v in free_vars if v != "self"]
        head = f"def {self._func_name}(self, values){maybe_return_annotation}:"
        if names:
            head += f"\n    {', '.join(names)}, = values"
        return head + "\n    values.clear()"


class _SectionWriter:
    """Builds the graph of one section."""

    def __init__(
        self,
        program: Program,
        section: Section,
        coordinate: Sequence[int],
        group_names: Sequence[str],
        device: torch.device,
    ) -> None:
        self.program = program
        self.section = section
        self.coordinate = coordinate
        self.group_names = group_names
        self.device = device
        self.graph = fx.Graph()
        self.values: dict[LocalRef, fx.Node] = {}
        self.totals: dict[LocalRef, fx.Node] = {}

    def write(self) -> fx.GraphModule:
        """The section's module."""
        instructions = self.program.table.instructions
        for ref in self.section.takes:
            # Unique by the instruction's number: where fx has to rename a placeholder, its
            # generated code assigns the names one after the other and may overwrite one too early.
            name = instructions[ref.instruction].node
            node = self.graph.placeholder(f"v{ref.instruction}_{ref.output}_{name}")
            self.values[ref] = self._described(node, ref)
        for ref in self.section.accumulates:
            self.totals[ref] = self.graph.placeholder(f"t{ref.instruction}_{ref.output}")
        copies: dict[int, list[CopyBack]] = {}
        for copy in self.section.copies:
            copies.setdefault(max(copy.after, self.section.first), []).append(copy)
        for index in range(self.section.first, self.section.last):
            if instructions[index].kind != "input":
                self._write_instruction(index, instructions[index])
                self._write_totals(index, instructions[index])
            self._write_copies(copies.pop(index, []))
        for ref in self.section.gives:
            if ref in self.program.storage.cloned_results:
                self.values[ref] = self._call(_ATEN.clone.default, (self.values[ref],))
        for at_end in copies.values():
            self._write_copies(at_end)
        self.graph.output(
            tuple(self.totals.get(ref, self.values[ref]) for ref in self.section.gives)
        )
        fuse_bias_add(self.graph)
        self.graph.lint()
        self.graph.set_codegen(ClearingCodeGen())
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def _write_instruction(self, index: int, instruction: Instruction) -> None:
        if instruction.reshard is not None:
            node = self._slice_again(index, instruction)
            if node is None:
                node = self._write_reshard(index, instruction.reshard)
            self.values.setdefault(LocalRef(index), node)
        else:
            node = self._write_compute(index, instruction)
        source = self.program.graph_node(instruction.node)
        node.meta["instruction"] = index
        for key in ("module_path", "source", "phase"):
            node.meta[key] = source.meta.get(key, "")
        if instruction.reshard is None:
            self._described(node, LocalRef(index))

    def _write_totals(self, index: int, instruction: Instruction) -> None:
        """Adds what was just made to the sums over microbatches."""
        for output in range(len(instruction.outputs)):
            ref = LocalRef(index, output)
            if ref in self.totals:
                total = self.totals[ref]
                self.totals[ref] = self._call(_ATEN.add_.Tensor, (total, self.values[ref]))

    def _described(self, node: fx.Node, ref: LocalRef) -> fx.Node:
        """Notes shape and dtype of the shard on its node."""
        outputs = self.program.table.instructions[ref.instruction].outputs
        if len(outputs) > ref.output:
            node.meta["local_shape"] = outputs[ref.output].local_shape
            node.meta["local_dtype"] = outputs[ref.output].dtype
        return node

    def _slice_again(self, index: int, instruction: Instruction) -> fx.Node | None:
        """The node of an equal slice made just before for the same op, as x * x has it."""
        for earlier in range(index - 1, self.section.first - 1, -1):
            other = self.program.table.instructions[earlier]
            if other.node != instruction.node or other.reshard is None:
                return None
            if other.reshard == instruction.reshard and other.reshard.kind == "slice":
                return self.values[LocalRef(earlier)]
        return None

    def _write_compute(self, index: int, instruction: Instruction) -> fx.Node:
        target = self.program.targets[index]
        written = self.program.storage.in_place.get(index)
        args, kwargs = torch_arguments(
            instruction, target, self.values.__getitem__, self.coordinate, self.device
        )
        if written is not None:
            in_place = in_place_target(instruction.op)
            assert in_place is not None
            node = self._call(in_place, args, kwargs)
            for output, operand in enumerate(written):
                self.values[LocalRef(index, output)] = node if operand is None else args[operand]
            return node
        node = self._call(target, args, kwargs)
        if len(instruction.outputs) == 1 and not _returns_tuple(target):
            self.values[LocalRef(index)] = node
        else:
            for output in range(len(instruction.outputs)):
                item = self._call(operator.getitem, (node, output))
                self.values[LocalRef(index, output)] = item
        return node

    def _write_reshard(self, index: int, step: Reshard) -> fx.Node:
        """Writes a conversion step, between casts where it reduces in a wider dtype.

        Returns:
            The node of the step itself.
        """
        source = self.values[step.source]
        wide = self._cast(source, step.reduce_dtype) if step.reduce_dtype else source
        node = result = self._write_step(step, wide)
        if step.reduce_dtype:
            result = self._cast(node, self.program.table.tensor(step.source).dtype)
        self.values[LocalRef(index)] = self._described(result, LocalRef(index))
        return node

    def _cast(self, source: fx.Node, dtype: str) -> fx.Node:
        return self._call(_ATEN._to_copy.default, (source,), {"dtype": getattr(torch, dtype)})

    def _write_step(self, step: Reshard, source: fx.Node) -> fx.Node:
        size = self.program.table.mesh_shape[step.axis]
        position = self.coordinate[step.axis]
        group = self.group_names[step.axis]
        ops = torch.ops.shardwright
        if step.kind == "all_gather":
            return self._call(ops.all_gather.default, (source, step.dim, step.outer, size, group))
        if step.kind == "reduce_scatter":
            return self._call(
                ops.reduce_scatter.default,
                (source, step.dim, step.outer, size, step.reduce, group),
            )
        if step.kind == "all_reduce":
            return self._call(ops.all_reduce.default, (source, step.reduce, group))
        if step.kind == "all_to_all":
            return self._call(
                ops.all_to_all.default,
                (source, step.dim, step.outer, step.to_dim, step.to_outer, size, group),
            )
        if step.kind == "slice":
            return self._call(
                ops.shard_slice.default, (source, step.dim, step.outer, size, position)
            )
        return self._call(ops.mask_partial.default, (source, position == 0))

    def _write_copies(self, copies: Sequence[CopyBack]) -> None:
        """Copies new values into the inputs they update, all as if at once."""
        sources = {copy.target: self.values[copy.value] for copy in copies}
        for copy in copies:
            if copy.through_clone:
                clone = self._call(_ATEN.clone.default, (sources[copy.target],))
                sources[copy.target] = clone
        for copy in copies:
            target = self.values[LocalRef(copy.target)]
            self._call(_ATEN.copy_.default, (target, sources[copy.target]))

    def _call(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)


def _returns_tuple(target: torch._ops.OpOverload) -> bool:
    returns = target._schema.returns
    return len(returns) != 1 or "[]" in str(returns[0].type) or "List" in str(returns[0].type)


def build_section_graph(
    program: Program,
    section: Section,
    coordinate: Sequence[int],
    group_names: Sequence[str],
    device: torch.device,
) -> fx.GraphModule:
    """GraphModule of one section on the rank at `coordinate`.

    Args:
        program: owner of the section.
        section: which one.
        coordinate: mesh coordinate of the rank.
        group_names: per axis the name of its process group.
        device: where it runs.

    Returns:
        A module whose forward takes one list with the values of `section.takes` and the sums so
        far of `section.accumulates`, empties it, and returns the tuple of `section.gives`.
    """
    return _SectionWriter(program, section, coordinate, group_names, device).write()
