"""From a captured step to the planner's op table: one flat, typed entry per op."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from shardwright import _core
from shardwright.errors import CaptureError
from shardwright.once import once_per_step

if TYPE_CHECKING:
    from shardwright.capture.step_graph import InputSpec, StepGraph

# Stands for an output that is not computed (output_mask): no elements, no bytes.
_NOT_COMPUTED = ((0,), "uint8")


@once_per_step
def to_core_graph(step_graph: StepGraph) -> _core.Graph:
    """The op table of a captured step, which the planner reads.

    Args:
        step_graph: the step; SymInts must not occur in it.

    Returns:
        A `_core.Graph`. Its nodes carry the names of the fx nodes, in their order, without the
        `getitem` nodes: output i of an op is `ValueRef(node, i)`.

    Raises:
        CaptureError: [E120] for a tensor dtype that cannot be sharded, [E122] for an argument that
            has no place in a table.
    """
    return table_from_fx(
        step_graph.graph_module,
        step_graph.inputs,
        [output.updates for output in step_graph.outputs],
    )


def table_from_fx(
    graph_module: fx.GraphModule,
    inputs: Sequence[InputSpec] | None = None,
    updates: Sequence[int | None] | None = None,
) -> _core.Graph:
    """Writes any flat fx graph as an op table.

    Args:
        graph_module: placeholders, op calls with `meta["val"]`, output.
        inputs: label of each placeholder; None labels all of them as batch.
        updates: per output the index of the input whose new value it is; None: no output is one.
    """
    writer = _TableWriter(graph_module, inputs, updates)
    return _core.Graph(writer.entries(), writer.outputs)


def table_nodes(graph_module: fx.GraphModule) -> list[fx.Node]:
    """The fx nodes that have an entry of their own in the op table, in its order."""
    return [
        node
        for node in graph_module.graph.nodes
        if node.op in ("placeholder", "get_attr")
        or (node.op == "call_function" and node.target is not operator.getitem)
    ]


def encode_text(value: Any) -> str:
    """Writes a dtype, layout, memory format or device as the table holds it.

    `torch.float32` becomes `"torch.float32"`, `torch.device("cpu")` becomes `"device:cpu"`.
    """
    return f"device:{value}" if isinstance(value, torch.device) else str(value)


def decode_text(text: str) -> Any:
    """Gives back what `encode_text` wrote; any other string is itself.

    `"torch.float32"` becomes `torch.float32`, `"device:cpu"` becomes `torch.device("cpu")`.
    """
    if text.startswith("device:"):
        return torch.device(text.removeprefix("device:"))
    if text.startswith("torch."):
        return getattr(torch, text.removeprefix("torch."))
    return text


class _TableWriter:
    """Makes the entries one by one and knows where each fx node went."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[InputSpec] | None,
        updates: Sequence[int | None] | None,
    ) -> None:
        self.outputs: list[tuple[_core.ValueRef, int | None]] = []  # complete after the entries
        self._graph_module = graph_module
        self._inputs = inputs
        self._updates = updates
        self._refs: dict[fx.Node, _core.ValueRef] = {}
        self._num_entries = 0

    def entries(self) -> Iterator[dict[str, Any]]:
        """Entry by entry: all of them together would keep the garbage collector busy."""
        input_nodes: list[int] = []
        for node in self._graph_module.graph.nodes:
            if node.op == "placeholder":
                spec = None if self._inputs is None else self._inputs[len(input_nodes)]
                input_nodes.append(self._num_entries)
                yield self._entry(node, "input", [], {}, node.meta["val"], _label(node, spec))
            elif node.op == "get_attr":
                name = str(node.target)
                value = _attribute(self._graph_module, name)
                yield self._entry(node, "input", [], {}, value, _plain_label("constant", name))
            elif node.op == "call_function" and node.target is operator.getitem:
                source, index = node.args
                assert isinstance(source, fx.Node)
                assert isinstance(index, int)
                self._refs[node] = _core.ValueRef(self._refs[source].node, index)
            elif node.op == "call_function":
                yield self._call(node)
            elif node.op == "output":
                self._add_outputs(node, input_nodes)

    def _add_outputs(self, node: fx.Node, input_nodes: list[int]) -> None:
        results = node.args[0]
        for index, result in enumerate(
            results if isinstance(results, (list, tuple)) else [results]
        ):
            if result is None:
                continue
            updated = None if self._updates is None else self._updates[index]
            self.outputs.append(
                (self._refs[result], None if updated is None else input_nodes[updated])
            )

    def _call(self, node: fx.Node) -> dict[str, Any]:
        args, kwargs = _normalized(node)
        return self._entry(
            node,
            _op_name(node.target),
            [self._argument(node, arg) for arg in args],
            {name: self._argument(node, arg) for name, arg in kwargs.items()},
            node.meta["val"],
            None,
        )

    def _entry(
        self,
        node: fx.Node,
        op: str,
        args: list[Any],
        kwargs: dict[str, Any],
        value: Any,
        label: dict[str, Any] | None,
    ) -> dict[str, Any]:
        values = value if isinstance(value, (list, tuple)) else [value]
        self._refs[node] = _core.ValueRef(self._num_entries, 0)
        self._num_entries += 1
        meta = node.meta
        phase = meta.get("phase") or "forward"
        return {
            "name": node.name,
            "op": op,
            "args": args,
            "kwargs": kwargs,
            "outputs": [_meta(tensor) for tensor in values],
            "phase": phase,
            "module_path": meta.get("module_path") or "",
            "source": meta.get("source") or "",
            "forward_index": meta.get("forward_index"),
            "layer_marks": meta.get("layer_marks", 0),
            "is_late": phase == "backward" and meta.get("round") == 1,
            "input": label,
        }

    def _argument(self, node: fx.Node, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self._refs[arg]
        if isinstance(arg, (list, tuple)):
            return [self._argument(node, element) for element in arg]
        if arg is None or isinstance(arg, (bool, int, float, str)):
            return arg
        if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
            return encode_text(arg)
        raise CaptureError(
            f"argument of op {node.target} has a type that cannot be planned.",
            code="E122",
            values=[f"node: {node.name}", f"argument: {arg!r} of type {type(arg).__name__}"],
            where=node.meta.get("source") or "",
            advice="make the shapes and scalars of the step independent of its data",
        )


@functools.cache
def _op_name(target: Any) -> str:
    return str(target)


@functools.cache
def _positional(target: Any) -> tuple[tuple[str, bool, Any], ...]:
    """Name, whether there is a default, and default of what an ATen op takes by position.

    Nothing for other ops: ops of our own keep what capture wrote, for their shard forms append to
    it.
    """
    if not isinstance(target, torch._ops.OpOverload) or target.namespace == "shardwright":
        return ()
    arguments = itertools.takewhile(lambda a: not a.kwarg_only, target._schema.arguments)
    return tuple((a.name, a.has_default_value(), a.default_value) for a in arguments)


def _normalized(node: fx.Node) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Arguments of an ATen call with all positional ones present and in place."""
    missing = _positional(node.target)[len(node.args) :]
    if not missing:
        return node.args, node.kwargs
    args, kwargs = list(node.args), dict(node.kwargs)
    for name, has_default, default in missing:
        if name in kwargs:
            args.append(kwargs.pop(name))
        elif has_default:
            args.append(default)
        else:
            break
    return args, kwargs


def _plain_label(kind: str, name: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "parameter": "", "key": "", "per_microbatch": False}


def _label(node: fx.Node, spec: InputSpec | None) -> dict[str, Any]:
    if spec is None:
        return _plain_label("batch", node.name)
    return {
        "kind": "batch" if spec.kind == "boundary" else spec.kind,
        "name": spec.name,
        "parameter": spec.parameter or "",
        "key": spec.key or "",
        "per_microbatch": spec.per_microbatch,
    }


def _meta(tensor: Any) -> tuple[tuple[int, ...], str]:
    if tensor is None:
        return _NOT_COMPUTED
    return tuple(tensor.shape), _dtype_name(tensor.dtype)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _attribute(graph_module: fx.GraphModule, target: str) -> torch.Tensor:
    value: Any = graph_module
    for name in target.split("."):
        value = getattr(value, name)
    assert isinstance(value, torch.Tensor)
    return value
