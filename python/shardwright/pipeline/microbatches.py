"""A captured step rewritten to take its batch in equal parts, one after the other.

What each node does on a part, and what is added up over the parts, is decided in
csrc/plan/microbatches.h; here it is written down as a new StepGraph. Forward and backward nodes of
it run once per microbatch, update nodes once per step, and `shardwright.accumulate` and
`shardwright.collect` mark what crosses.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from shardwright import _core
from shardwright.capture.ops.library import accumulate_dtype
from shardwright.capture.step_graph import InputSpec, OutputSpec, StepGraph, uncompiled_module
from shardwright.collector import collector_paused
from shardwright.errors import ConfigError
from shardwright.graph_table import decode_text, table_nodes
from shardwright.pipeline.fx_nodes import copied_node, named_call

_COPY = torch.ops.aten._to_copy.default
_Value = tuple[str, int]


@collector_paused()
def split_microbatches(step_graph: StepGraph, num_microbatches: int) -> StepGraph:
    """The step with its batch in `num_microbatches` parts.

    Batch tensors whose dim 0 is as long as that of the first one are cut along it; all others are
    whole in every part. Functions of the batch alone that each part needs whole (the number of
    targets that a mean loss divides by) are computed from the whole batch.

    Nodes keep their names.

    Args:
        step_graph: as captured.
        num_microbatches: how many parts; 1 gives the graph itself.

    Raises:
        ConfigError: E526 when the batch cannot be divided so often.
        PlanError: E330 to E333 when the parts need each other, see docs/errors.md.
    """
    if num_microbatches == 1:
        return step_graph
    batch_size = _batch_size(step_graph, num_microbatches)
    graph = step_graph
    while True:
        names, cut = _cut(graph, num_microbatches, batch_size)
        if not cut.whole:
            return _Writer(graph, names, cut, num_microbatches).write()
        graph = _with_whole(graph, [(names[value.node], value.output) for value in cut.whole])


def _batch_size(step_graph: StepGraph, num_microbatches: int) -> int:
    sizes = [s.meta.shape[0] for s in step_graph.inputs if s.kind == "batch" and s.meta.dim() > 0]
    if not sizes or sizes[0] % num_microbatches != 0 or num_microbatches < 1:
        raise ConfigError(
            "the batch cannot be divided into so many microbatches.",
            code="E526",
            values=[
                f"num_microbatches: {num_microbatches}",
                f"samples: {sizes[0]}" if sizes else "the step takes no batch tensor",
            ],
            advice="a number that divides the number of samples (dim 0 of the batch tensors)",
        )
    return int(sizes[0])


def _is_split(spec: InputSpec, batch_size: int) -> bool:
    is_batch = spec.kind == "batch" and not spec.leaf
    return is_batch and spec.meta.dim() > 0 and spec.meta.shape[0] == batch_size


def _cut(
    graph: StepGraph, num_microbatches: int, batch_size: int
) -> tuple[list[str], _core.MicrobatchStep]:
    """Names of the table's nodes, and what each does on one microbatch."""
    from shardwright.planning import sharded_graph

    sharded = sharded_graph(graph)
    names = [node.name for node in table_nodes(graph.graph_module)]
    number = {name: i for i, name in enumerate(names)}
    placeholders = zip(graph.placeholders, graph.inputs, strict=True)
    split = [number[node.name] for node, spec in placeholders if _is_split(spec, batch_size)]
    statistics = {
        number[node.name]: node.meta["batch_norm_count"]
        for node in graph.graph_module.graph.nodes
        if "batch_norm_count" in node.meta and node.name in number
    }
    return names, _core.cut_over_time(sharded, num_microbatches, split, statistics)


def _with_whole(step_graph: StepGraph, values: Sequence[_Value]) -> StepGraph:
    """The step with some functions of the batch computed from whole batch inputs of their own."""
    graph = fx.Graph()
    old = step_graph.graph_module.graph
    copies: dict[fx.Node, fx.Node] = {}
    inputs = list(step_graph.inputs)
    spec_of = dict(zip(step_graph.placeholders, step_graph.inputs, strict=True))
    for node in spec_of:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    wholes: dict[fx.Node, fx.Node] = {}
    known = {spec.leaf: copies[node] for node, spec in spec_of.items() if spec.leaf}
    wanted = [_fx_node(old, value) for value in values]
    needed = _ancestors(wanted)
    for node in old.nodes:  # inputs first, for they come first in a graph
        if node in needed and node.op == "placeholder":
            spec = spec_of[node]
            if spec.kind != "batch" or spec.leaf:
                wholes[node] = copies[node]
                continue
            if spec.name not in known:
                inputs.append(
                    dataclasses.replace(spec, name=f"{spec.name} (whole)", leaf=spec.name)
                )
                whole = graph.placeholder(f"{node.name}_whole")
                whole.meta = dict(node.meta)
                known[spec.name] = whole
            wholes[node] = known[spec.name]
    for node in old.nodes:
        if node in needed and node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), wholes.__getitem__)
            wholes[node] = named_call(graph, f"{node.name}_whole", node.target, args, kwargs)
            wholes[node].meta = dict(node.meta)
    replaced = {node: wholes[node] for node in wanted}
    for node in old.nodes:
        if node in replaced:
            copies[node] = replaced[node]
        elif node.op == "call_function":
            copies[node] = copied_node(graph, node, copies.__getitem__)
        elif node.op == "output":
            graph.node_copy(node, copies.__getitem__)
    drop_dead(graph)
    module = uncompiled_module(graph)
    return dataclasses.replace(step_graph, graph_module=module, inputs=tuple(inputs))


def _fx_node(graph: fx.Graph, value: _Value) -> fx.Node:
    name, output = value
    node: fx.Node = next(n for n in graph.nodes if n.name == name)
    if isinstance(node.meta["val"], (list, tuple)):
        return next(u for u in node.users if is_item(u) and u.args[1] == output)
    return node


def is_item(node: fx.Node) -> bool:
    """Whether it picks one output of an op with several."""
    return node.target is operator.getitem


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def drop_dead(graph: fx.Graph) -> None:
    """Drops calls without users; inputs stay."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


class _Writer:
    """Writes the graph of the step in microbatches."""

    def __init__(
        self, step_graph: StepGraph, names: list[str], cut: _core.MicrobatchStep, count: int
    ) -> None:
        self.old = step_graph
        self.cut = cut
        self.forms = cut.nodes  # the attribute is a new list each time
        self.count = count
        self.results = step_graph.output_nodes
        self.fakes: dict[tuple[torch.dtype, tuple[int, ...]], Tensor] = {}
        self.names = names
        self.graph = fx.Graph()
        self.nodes = {n.name: n for n in step_graph.graph_module.graph.nodes}
        self.number = {name: i for i, name in enumerate(names)}
        self.accumulated = {(names[v.node], v.output) for v in cut.accumulated}
        self.parts: dict[_Value, fx.Node] = {}  # values within a microbatch
        self.totals: dict[_Value, fx.Node] = {}  # the same, as the update reads them
        self.fake_mode = step_graph.inputs[0].meta.fake_mode  # type: ignore[attr-defined]

    def write(self) -> StepGraph:
        """The new step."""
        inputs = tuple(self._inputs())
        for name in self._calls(once=False):
            self._call(name, self.parts)
        for name in self.names:
            for output in range(len(self._form(name).output_shapes)):
                self._cross((name, output))
        for name in self._calls(once=True):
            self._call(name, self.totals)
        outputs = [self._output(i) for i in range(len(self.old.outputs))]
        self.graph.output([node for node, _ in outputs])
        drop_dead(self.graph)
        self.graph.lint()
        module = uncompiled_module(self.graph)
        return dataclasses.replace(
            self.old,
            graph_module=module,
            inputs=inputs,
            outputs=tuple(spec for _, spec in outputs),
            num_microbatches=self.count,
        )

    def _form(self, name: str) -> _core.MicrobatchNode:
        return self.forms[self.number[name]]

    def _inputs(self) -> Iterator[InputSpec]:
        for node, spec in zip(self.old.placeholders, self.old.inputs, strict=True):
            (shape,) = self._form(node.name).output_shapes
            new = self.graph.placeholder(node.name)
            val = self._fake(shape, spec.meta)
            new.meta = {**node.meta, "val": val}
            self.parts[node.name, 0] = new
            split = self._form(node.name).over_time == ["split"]
            yield dataclasses.replace(spec, meta=val, split=split)

    def _calls(self, *, once: bool) -> Iterator[str]:
        for name in self.names:
            node = self.nodes[name]
            if node.op == "call_function" and self._form(name).once == once:
                yield name

    def _fake(self, shape: Sequence[int], like: Tensor) -> Tensor:
        if tuple(shape) == tuple(like.shape):
            return like
        return self._empty(tuple(shape), like.dtype)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        known = self.fakes.get((dtype, shape))
        if known is None:
            with self.fake_mode:
                known = torch.empty(shape, dtype=dtype)
            self.fakes[dtype, shape] = known
        return known

    def _call(self, name: str, values: dict[_Value, fx.Node]) -> None:
        old, form = self.nodes[name], self._form(name)
        args = tuple(
            self._argument(a, b, values) for a, b in zip(form.args, old.args, strict=False)
        )
        args += tuple(decoded(a) for a in form.args[len(old.args) :])
        kwargs = {k: self._argument(form.kwargs[k], v, values) for k, v in old.kwargs.items()}
        new = named_call(self.graph, old.name, old.target, args, kwargs)
        new.meta = {**old.meta}
        if form.once:
            new.meta["phase"] = "update"
        val = old.meta["val"]
        if not isinstance(val, (list, tuple)):
            new.meta["val"] = self._fake(form.output_shapes[0], val)
            values[name, 0] = new
            return
        new.meta["val"] = [
            v if v is None else self._fake(shape, v)
            for v, shape in zip(val, form.output_shapes, strict=True)
        ]
        for user in list(old.users):
            output = user.args[1]
            item = named_call(self.graph, user.name, operator.getitem, (new, output))
            item.meta = {**user.meta, "phase": new.meta["phase"], "val": new.meta["val"][output]}
            values[name, output] = item

    def _argument(self, local: Any, old: Any, values: dict[_Value, fx.Node]) -> Any:
        if isinstance(old, fx.Node):
            return values[self.names[local.instruction], local.output]
        lists = isinstance(old, (list, tuple)) and isinstance(local, list)
        if lists and len(old) == len(local):
            return [self._argument(a, b, values) for a, b in zip(local, old, strict=True)]
        return decoded(local)

    def _cross(self, value: _Value) -> None:
        """Makes a value of the parts known to the update."""
        if value not in self.parts:
            return
        node = self.parts[value]
        if value not in self.accumulated:
            self.totals[value] = node
            return
        dtype = node.meta["val"].dtype
        wide = accumulate_dtype(dtype) if dtype.is_floating_point else dtype
        phase = node.meta["phase"]
        added = self._cast(node, wide, phase)
        accumulate = torch.ops.shardwright.accumulate.default
        total = named_call(self.graph, f"{node.name}_total", accumulate, (added,))
        total.meta = {**added.meta, "phase": "update"}
        self.totals[value] = self._cast(total, dtype, "update")

    def _cast(self, node: fx.Node, dtype: torch.dtype, phase: str) -> fx.Node:
        if node.meta["val"].dtype == dtype:
            return node
        new = named_call(self.graph, f"{node.name}_cast", _COPY, (node,), {"dtype": dtype})
        val = self._empty(tuple(node.meta["val"].shape), dtype)
        new.meta = {**node.meta, "phase": phase, "val": val}
        return new

    def _output(self, index: int) -> tuple[fx.Node, OutputSpec]:
        spec = self.old.outputs[index]
        value = self._value(self.results[index])
        dim = self.cut.joined_dims[index]
        if dim < 0:
            node = self.totals.get(value)
            return (self.parts[value] if node is None else node), spec
        part = self.parts[value]
        shape = list(part.meta["val"].shape)
        shape[dim] *= self.count
        collect = torch.ops.shardwright.collect.default
        with self.graph.inserting_after(part):
            node = self.graph.call_function(collect, (part, dim, self.count))
        node.meta = {**part.meta, "val": self._fake(shape, part.meta["val"])}
        return node, spec

    @staticmethod
    def _value(node: fx.Node) -> _Value:
        if is_item(node):
            source, output = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(output, int)
            return source.name, output
        return node.name, 0


def decoded(value: Any) -> Any:
    """An argument of the planner's table as fx holds it."""
    if isinstance(value, str):
        return decode_text(value)
    if isinstance(value, list):
        return [decoded(item) for item in value]
    return value
