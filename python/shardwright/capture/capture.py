"""capture(): the user's step and its arguments -> StepGraph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from shardwright.capture import ops as _ops  # noqa: F401  (registers the ops)
from shardwright.capture.arguments import StepArguments, sort_arguments
from shardwright.capture.normalize import normalize
from shardwright.capture.optimizers import hyper_inputs, is_known, read_hyper, state_inputs
from shardwright.capture.step_graph import InputSpec, OutputSpec, StepGraph, uncompiled_module
from shardwright.capture.trace import Trace, trace_step
from shardwright.errors import CaptureError


def capture(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> StepGraph:
    """Captures one call of a training step as one functional graph.

    The step runs once (twice when an unfamiliar optimizer creates its state in the step, or when
    gradients may be carried from call to call) on fake CPU tensors; no value of a parameter,
    buffer, batch or optimizer state is read, and the arguments are left as they were.

    Args:
        step: the user's function.
        args: what it is called with; tensors may be on any device, also meta.
        kwargs: likewise, by name.

    Returns:
        The graph, equal for equal steps on every machine.

    Raises:
        CaptureError: codes E101 to E112, see docs/errors.md.
    """
    arguments = sort_arguments(step, args, kwargs or {})
    trace = _trace(arguments)
    return _assemble(trace, arguments)


def _trace(arguments: StepArguments) -> Trace:
    states = state_inputs(arguments)
    baked: frozenset[str] = frozenset()
    try:
        trace = trace_step(arguments, states, baked)
    except CaptureError as error:
        baked = _lr_of_unknown_optimizers(arguments)
        if error.code != "E101" or not baked:
            raise
        trace = trace_step(arguments, states, baked)
    if trace.new_state:
        states = states + trace.new_state
        trace = trace_step(arguments, states, baked)
    if trace.carried_grads:
        trace = trace_step(arguments, states, baked, with_grads=True)
    for name in sorted(baked):
        trace.guards[name] = read_hyper(arguments.optimizers, name)
    return trace


def _lr_of_unknown_optimizers(arguments: StepArguments) -> frozenset[str]:
    return frozenset(
        hyper.name
        for hyper in hyper_inputs(arguments.optimizers, frozenset())
        if not is_known(arguments.optimizers[hyper.optimizer])
    )


def _assemble(trace: Trace, arguments: StepArguments) -> StepGraph:
    """Normalises, drops what is not needed and labels the ends."""
    graph, inputs = trace.graph, list(trace.inputs)
    constants = _lift_constants(graph, trace.constants, inputs)
    (output,) = (n for n in graph.nodes if n.op == "output")
    values, results = output.args[0]
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    output.args = ([*(v for v in values if v is not None), *results],)
    updated = [i for i, value in enumerate(values) if value is not None]
    fake_mode = inputs[0].meta.fake_mode  # type: ignore[attr-defined]
    normalize(graph, fake_mode, arguments.where)

    new_values = list(output.args[0])
    kept, outputs = [], []
    for i, value in zip(updated, new_values, strict=False):
        if value is not placeholders[i]:
            kept.append(value)
            outputs.append(OutputSpec("update", i))
    kept += new_values[len(updated) :]
    outputs += [OutputSpec("result")] * len(results)
    output.args = (kept,)
    graph.eliminate_dead_code()
    return _drop_unused_inputs(trace, arguments, graph, placeholders, inputs, outputs, constants)


def _drop_unused_inputs(
    trace: Trace,
    arguments: StepArguments,
    graph: fx.Graph,
    placeholders: list[fx.Node],
    inputs: list[InputSpec],
    outputs: list[OutputSpec],
    constants: dict[str, Tensor],
) -> StepGraph:
    kept: list[InputSpec] = []
    position: dict[int, int] = {}
    for i, (node, spec) in enumerate(zip(placeholders, inputs, strict=True)):
        _refuse_carried_grad(node, spec, arguments)
        batch = spec.kind == "batch" and spec.name in arguments.batch
        if not node.users and spec.kind not in ("parameter", "buffer") and not batch:
            graph.erase_node(node)
            continue
        node.meta.update(phase="forward", module_path="", source="")
        position[i] = len(kept)
        kept.append(spec)
    outputs = [
        o if o.updates is None else dataclasses.replace(o, updates=position[o.updates])
        for o in outputs
    ]
    _forget_autograd(graph)
    graph.lint()
    graph_module = uncompiled_module(graph)
    names = {spec.name for spec in kept if spec.kind == "constant"}
    return StepGraph(
        graph_module,
        tuple(kept),
        tuple(outputs),
        trace.result_tree,
        {name: value for name, value in constants.items() if name in names},
        dict(sorted(trace.guards.items())),
    )


def _refuse_carried_grad(node: fx.Node, spec: InputSpec, arguments: StepArguments) -> None:
    carried = spec.kind == "batch" and spec.name not in arguments.batch
    if carried and node.users:
        raise CaptureError(
            f"the step adds to the gradient of {spec.name.removesuffix('.grad')} that an earlier "
            "call left",
            code="E109",
            where=arguments.where,
            advice="let the step end with optimizer.zero_grad() (set_to_none=True, the default: a "
            "gradient set to zeros is still carried), and accumulate over microbatches inside it",
        )


def _forget_autograd(graph: fx.Graph) -> None:
    """Replaces fakes that carry a history of operations by fakes that do not."""
    for node in graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, Tensor) and val.requires_grad:
            node.meta["val"] = val.detach()


def _lift_constants(
    graph: fx.Graph, values: dict[str, Tensor], inputs: list[InputSpec]
) -> dict[str, Tensor]:
    """Tensor constants of the graph: uniform ones become aten.full, others placeholders."""
    constants: dict[str, Tensor] = {}
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    fake_mode = inputs[0].meta.fake_mode  # type: ignore[attr-defined]
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        if node.users:
            value = values[str(node.target)].cpu()
            lifted = _lift(graph, node, value, last, inputs, constants, fake_mode)
            last = lifted if lifted.op == "placeholder" else last
            node.replace_all_uses_with(lifted)
        graph.erase_node(node)
    return constants


def _lift(
    graph: fx.Graph, node: fx.Node, value: Tensor, last: fx.Node, inputs: list[InputSpec],
    constants: dict[str, Tensor], fake_mode: Any,
) -> fx.Node:  # fmt: skip
    with fake_mode:
        fake = torch.empty(tuple(value.shape), dtype=value.dtype)
    if value.numel() and bool((value == value.flatten()[0]).all()):
        with graph.inserting_after(last):
            lifted = graph.call_function(
                torch.ops.aten.full.default,
                (list(value.shape), value.flatten()[0].item()),
                {"dtype": value.dtype},
            )
    else:
        name = f"constant_{len(constants)}"
        constants[name] = value
        inputs.append(InputSpec("constant", name, meta=fake))
        with graph.inserting_after(last):
            lifted = graph.placeholder(name)
    lifted.meta.update(
        val=fake, phase="forward", module_path=node.meta.get("module_path", ""),
        source=node.meta.get("source", ""),
    )  # fmt: skip
    return lifted
