"""From a captured step to the planner's op table: one flat, typed entry per op."""

from __future__ import annotations

import operator
from collections.abc import Sequence
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
    writer = _TableWriter()
    input_nodes: list[int] = []
    outputs: list[tuple[_core.ValueRef, int | None]] = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            spec = None if inputs is None else inputs[len(input_nodes)]
            input_nodes.append(writer.add_input(node, _label(node, spec)))
        elif node.op == "get_attr":
            label = _plain_label("constant", str(node.target))
            writer.add_input(node, label, _attribute(graph_module, str(node.target)))
        elif node.op == "call_function":
            writer.add_call(node)
        elif node.op == "output":
            results = node.args[0]
            for index, result in enumerate(
                results if isinstance(results, (list, tuple)) else [results]
            ):
                if result is None:
                    continue
                updated = None if updates is None else updates[index]
                input_node = None if updated is None else input_nodes[updated]
                outputs.append((writer.value(result), input_node))
    return _core.Graph(writer.nodes, outputs)


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
    """Collects the entries and knows where each fx node went."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._refs: dict[fx.Node, _core.ValueRef] = {}

    def value(self, node: fx.Node) -> _core.ValueRef:
        return self._refs[node]

    def add_input(
        self, node: fx.Node, label: dict[str, Any], tensor: torch.Tensor | None = None
    ) -> int:
        value = node.meta["val"] if tensor is None else tensor
        return self._add(node, "input", (), {}, value, label)

    def add_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(index, int)
            self._refs[node] = _core.ValueRef(self._refs[source].node, index)
            return
        args, kwargs = _normalized(node)
        self._add(
            node,
            str(node.target),
            tuple(self._argument(node, arg) for arg in args),
            {name: self._argument(node, arg) for name, arg in kwargs.items()},
            node.meta["val"],
            None,
        )

    def _add(
        self,
        node: fx.Node,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: Any,
        label: dict[str, Any] | None,
    ) -> int:
        values = value if isinstance(value, (list, tuple)) else [value]
        index = len(self.nodes)
        self.nodes.append(
            {
                "name": node.name,
                "op": op,
                "args": args,
                "kwargs": kwargs,
                "outputs": [_meta(tensor) for tensor in values],
                "phase": node.meta.get("phase") or "forward",
                "module_path": node.meta.get("module_path") or "",
                "source": node.meta.get("source") or "",
                "forward_index": node.meta.get("forward_index"),
                "layer_marks": node.meta.get("layer_marks", 0),
                "is_late": node.meta.get("phase") == "backward" and node.meta.get("round") == 1,
                "input": label,
            }
        )
        self._refs[node] = _core.ValueRef(index, 0)
        return index

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


def _normalized(node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of an ATen call with all positional ones present and in place.

    Ops of our own keep what capture wrote: their shard forms append to it.
    """
    args, kwargs = list(node.args), dict(node.kwargs)
    if not isinstance(node.target, torch._ops.OpOverload):
        return args, kwargs
    if node.target.namespace == "shardwright":
        return args, kwargs
    for parameter in node.target._schema.arguments[len(args) :]:
        if parameter.kwarg_only:
            break
        if parameter.name in kwargs:
            args.append(kwargs.pop(parameter.name))
        elif parameter.has_default_value():
            args.append(parameter.default_value)
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
    return tuple(int(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _attribute(graph_module: fx.GraphModule, target: str) -> torch.Tensor:
    value: Any = graph_module
    for name in target.split("."):
        value = getattr(value, name)
    assert isinstance(value, torch.Tensor)
    return value
