"""StepGraph: one functional ATen graph of a whole training step, with labelled ends.

Nodes carry `meta["val"]` (fake CPU tensor), `meta["phase"]` (forward, backward or update),
`meta["module_path"]`, `meta["source"]`, and where known `meta["forward_index"]`: which forward op,
in the order they ran, it is, differentiates or computes again. Strides carry no meaning:
`aten.view.default` stands for any reshape, and a consumer that needs a layout makes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from shardwright.capture.reference import run_graph
from shardwright.errors import InternalError
from shardwright.once import once_per_step

InputKind = Literal[
    "parameter", "buffer", "optimizer_state", "batch", "hyper", "rng", "constant", "boundary"
]
Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True)
class StateInit:
    """How optimizer state that does not exist yet begins.

    Attributes:
        kind: "full" fills with `value`; "parameter" copies the owning parameter, cast to the
            state's dtype.
        value: fill value of kind "full".
    """

    kind: Literal["full", "parameter"]
    value: float = 0.0


@dataclass(frozen=True)
class InputSpec:
    """Label of one placeholder.

    Attributes:
        kind: what feeds it.
        name: parameter and buffer: name as in `named_parameters()`, with the argument's name in
            front only when several modules are passed; optimizer_state: `<parameter>.<key>`;
            batch: path within the arguments such as `batch['x'][0]`; hyper:
            `optimizer.param_groups[0].lr`; rng: `seed`; constant: `constant_0`; boundary: node of
            the whole step whose value comes from another stage.
        parameter: owning parameter of an optimizer state.
        key: optimizer_state: `exp_avg`, ...; hyper: `lr`, `beta1`, ...
        meta: fake CPU tensor of the global shape and dtype.
        init: how state is created that the optimizer does not hold yet; None for other kinds.
        aliases: further names of a tied parameter or shared buffer.
        split: batch: each microbatch is fed its own part along dim 0; `meta` is of one part.
        leaf: batch: name of the argument when it is not `name`.
        per_microbatch: boundary: received anew for every microbatch, and kept until that one's
            backward is done.
    """

    kind: InputKind
    name: str
    parameter: str | None = None
    key: str | None = None
    meta: torch.Tensor = field(repr=False, default=None)  # type: ignore[assignment]
    init: StateInit | None = None
    aliases: tuple[str, ...] = ()
    split: bool = False
    leaf: str = ""
    per_microbatch: bool = False


@dataclass(frozen=True)
class OutputSpec:
    """Label of one output.

    Attributes:
        kind: "update": new value of an input; "result": tensor of the user's return value.
        updates: index of the input whose new value this is, None for results.
    """

    kind: Literal["update", "result"]
    updates: int | None = None


@dataclass(frozen=True)
class ResultTree:
    """The user's return value: tensors are marked by slots, Python constants are kept.

    Attributes:
        spec: structure of the return value.
        leaves: per leaf either `ResultSlot` (which output) or the constant itself.
    """

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    def rebuild(self, results: Sequence[Any]) -> Any:
        """Puts tensors into the places they had in the user's return value.

        Args:
            results: values of the outputs of kind "result", in order.
        """
        leaves = [results[x.index] if isinstance(x, ResultSlot) else x for x in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class ResultSlot:
    """Place of a tensor in the return value: index among the outputs of kind "result"."""

    index: int


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A captured step, equal only to itself. Treat as immutable; passes make a new one.

    Attributes:
        graph_module: flat functional graph: placeholders, ATen and shardwright calls, output.
        inputs: one per placeholder, in order.
        outputs: one per output value, in order: updates by input index, then results.
        result_tree: how to rebuild the user's return value from the results.
        constants: values of the inputs of kind "constant", by name.
        guards: hyper-parameter values that are baked into the graph, by name; another value
            needs another capture.
        num_microbatches: how often forward and backward run per step; the nodes of these phases
            are of one microbatch.
    """

    graph_module: fx.GraphModule
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    result_tree: ResultTree
    constants: dict[str, torch.Tensor]
    guards: dict[str, Any]
    num_microbatches: int = 1

    @property
    def placeholders(self) -> list[fx.Node]:
        """Placeholder nodes, in the order of `inputs`."""
        return [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]

    @property
    def output_nodes(self) -> list[fx.Node]:
        """Nodes whose values are returned, in the order of `outputs`."""
        (node,) = (n for n in self.graph_module.graph.nodes if n.op == "output")
        return list(node.args[0])

    @once_per_step
    def hash(self) -> str:
        """SHA-256 over ops, arguments, shapes, dtypes and labels; source lines do not count."""
        digest = hashlib.sha256()
        number: dict[fx.Node, int] = {}
        for node in self.graph_module.graph.nodes:
            number[node] = len(number)
            line = f"{node.op} {_target_name(node)} {_text((node.args, node.kwargs), number)}"
            digest.update(f"{line} {_shape_text(node.meta.get('val'))}".encode())
            digest.update(f" {node.meta.get('phase')}\n".encode())
        for spec in self.inputs:
            init = "" if spec.init is None else f"{spec.init.kind}:{spec.init.value!r}"
            digest.update(f"{spec.kind} {spec.name} {spec.key} {init} {spec.aliases}\n".encode())
        for output in self.outputs:
            digest.update(f"{output.kind} {output.updates}\n".encode())
        if self.num_microbatches > 1:
            split = [spec.name for spec in self.inputs if spec.split]
            digest.update(f"{self.num_microbatches} microbatches of {split}\n".encode())
        digest.update(repr(self.result_tree.leaves).encode())
        for name in sorted(self.constants):
            value = self.constants[name].detach().cpu().contiguous()
            digest.update(name.encode())
            digest.update(bytes(value.view(torch.uint8).flatten().tolist()) if value.dim() else
                          repr(value.item()).encode())  # fmt: skip
        return digest.hexdigest()

    def run_reference(self, flat_inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Executes the graph on one device, op by op, with real tensors.

        Args:
            flat_inputs: one real tensor per input, with the shape and dtype of its spec; of the
                whole batch where it comes in microbatches.

        Returns:
            One tensor per output. Inputs are not changed.
        """
        if len(flat_inputs) != len(self.inputs):
            raise InternalError(
                f"run_reference got {len(flat_inputs)} inputs for {len(self.inputs)} placeholders",
                code="E911",
            )
        return run_graph(self, flat_inputs)


def uncompiled_module(graph: fx.Graph) -> fx.GraphModule:
    """A module of the graph whose Python code is written only when it is asked for.

    A step's graph is read, cut and run in sections, but never called itself.
    """
    return _LazyGraphModule(torch.nn.Module(), graph)


def _target_name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else ""


def _text(value: Any, number: dict[fx.Node, int]) -> str:
    """Stable text of node arguments, nodes by position."""
    if isinstance(value, fx.Node):
        return f"%{number[value]}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(x, number) for x in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}={_text(value[k], number)}" for k in sorted(value)) + "}"
    return repr(value)


def _shape_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(_shape_text(x) for x in value) + ")"
    return repr(value)
