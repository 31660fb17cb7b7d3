"""Runs the user's step on fake CPU tensors and records one functional ATen graph of it."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from shardwright.capture import optimizers as optim
from shardwright.capture.arguments import CONSTANT_TYPES, StepArguments
from shardwright.capture.decompositions import decomposition_table
from shardwright.capture.failures import explained
from shardwright.capture.initial_state import beginnings
from shardwright.capture.interception import Interception
from shardwright.capture.optimizer_control import OptimizerControl
from shardwright.capture.optimizers import StateInput
from shardwright.capture.recorder import Recorder
from shardwright.capture.session import Session
from shardwright.capture.step_graph import InputSpec, ResultSlot, ResultTree
from shardwright.capture.swap import modules_on, optimizers_on
from shardwright.capture.tags import Tags
from shardwright.errors import CaptureError


@dataclass
class Trace:
    """A traced step before normalisation.

    Attributes:
        graph: functional graph; the output is (new value of each input or None, results).
        inputs: one per placeholder.
        constants: values of the graph's `get_attr` nodes.
        result_tree: the user's return value.
        guards: hyper-parameter values that the step read as Python numbers.
        new_state: state that the step's optimizers created, with its beginning.
        carried_grads: parameters whose gradient is left over for the next call, although the step
            did not clear it before its first backward().
    """

    graph: fx.Graph
    inputs: list[InputSpec]
    constants: dict[str, Tensor]
    result_tree: ResultTree
    guards: dict[str, Any]
    new_state: list[StateInput]
    carried_grads: set[str]


def trace_step(
    arguments: StepArguments,
    states: list[StateInput],
    baked_hyper: frozenset[str],
    with_grads: bool = False,
) -> Trace:
    """Traces one call of the step.

    Args:
        arguments: what it is called with; values are never read.
        states: optimizer state that is fed as input.
        baked_hyper: hyper-parameters to treat as constants.
        with_grads: begin with a gradient of every trainable parameter as extra inputs (of kind
            "batch", named `<parameter>.grad`), to see whether the step uses them.

    Raises:
        CaptureError: the step cannot be one graph (see docs/errors.md, E1xx).
    """
    hypers = optim.hyper_inputs(arguments.optimizers, baked_hyper)
    session = Session(arguments, states, hypers, with_grads)
    inputs = _make_inputs(session)
    recorder = Recorder(session.fake_mode, Tags(arguments.modules), decomposition_table())
    session.node_of = recorder.node_of
    placeholders = [recorder.placeholder(_node_name(spec), spec.meta) for spec in inputs]
    with session.fake_mode, explained(arguments):
        values, results = _run(session, recorder, inputs, placeholders)
    recorder.graph.output((values, results))
    recorder.tags.settle(recorder.graph)
    spec_of = dict(zip(placeholders, inputs, strict=True))
    new_state = beginnings(session.created, spec_of, recorder.constants, arguments.where)
    return Trace(
        recorder.graph,
        inputs,
        recorder.constants,
        session.result,
        session.guards,
        new_state,
        session.carried,
    )


def _node_name(spec: InputSpec) -> str:
    return re.sub(r"\W+", "_", f"{spec.kind}_{spec.name}").strip("_")


def _make_inputs(session: Session) -> list[InputSpec]:
    """Specs with fake tensors, in the order parameter, buffer, state, batch, hyper, rng."""
    arguments = session.arguments

    def fake(shape: Any, dtype: torch.dtype) -> Tensor:
        with session.fake_mode:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")

    inputs = []
    for kind, table in (("parameter", arguments.parameters), ("buffer", arguments.buffers)):
        for name, tensor in table.items():
            inputs.append(InputSpec(
                kind, name, meta=fake(tensor.shape, tensor.dtype),  # type: ignore[arg-type]
                aliases=arguments.aliases.get(name, ()),
            ))  # fmt: skip
    for state in session.states:
        inputs.append(InputSpec(
            "optimizer_state", state.name, state.parameter, state.key,
            fake(state.shape, state.dtype), state.init,
        ))  # fmt: skip
    for name, tensor in arguments.batch.items():
        inputs.append(InputSpec("batch", name, meta=fake(tensor.shape, tensor.dtype)))
    for hyper in session.hypers:
        inputs.append(InputSpec("hyper", hyper.name, key=hyper.key, meta=fake((), torch.float64)))
    inputs.append(InputSpec("rng", "seed", meta=fake((), torch.int64)))
    if session.with_grads:
        for name, tensor in arguments.parameters.items():
            if tensor.requires_grad:
                inputs.append(
                    InputSpec("batch", f"{name}.grad", meta=fake(tensor.shape, tensor.dtype))
                )
    return inputs


def _run(
    session: Session, recorder: Recorder, inputs: list[InputSpec], placeholders: list[fx.Node]
) -> tuple[list[fx.Node | None], list[fx.Node]]:
    """Runs the step on fakes; gives the nodes of all new values and of all results."""
    arguments = session.arguments
    by_name: dict[tuple[str, str], Tensor] = {}
    traced: dict[int, Tensor] = {}
    for spec, node in zip(inputs, placeholders, strict=True):
        tensor = spec.meta.detach()  # what is recorded keeps the untouched fake
        if spec.kind == "parameter":
            real = arguments.parameters[spec.name]
            tensor = nn.Parameter(tensor, requires_grad=real.requires_grad)
            traced[id(real)] = tensor
        elif spec.kind == "buffer":
            traced[id(arguments.buffers[spec.name])] = tensor
        elif spec.kind == "batch" and spec.name in arguments.batch:
            tensor.requires_grad_(arguments.batch[spec.name].requires_grad)
        recorder.bind(tensor, node)
        by_name[spec.kind, spec.name] = tensor
    if session.with_grads:
        for name, real in arguments.parameters.items():
            if real.requires_grad:
                traced[id(real)].grad = by_name["batch", f"{name}.grad"]
    with recorder:
        values, results = _call_step(session, recorder.tags, inputs, by_name, traced)
        new_nodes = [None if v is None else recorder.node_of(v) for v in values]
        return new_nodes, [recorder.node_of(r) for r in results]


def _call_step(
    session: Session,
    tags: Tags,
    inputs: list[InputSpec],
    by_name: dict[tuple[str, str], Tensor],
    traced: dict[int, Tensor],
) -> tuple[list[Tensor | None], list[Tensor]]:
    arguments = session.arguments
    interception = Interception(tags, by_name["rng", "seed"], arguments.where)
    control = OptimizerControl(session, by_name, tags)
    leaves = [
        by_name["batch", name] if isinstance(leaf, Tensor) else leaf
        for name, leaf in zip(arguments.names, arguments.leaves, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, arguments.treedef)
    tables = (control.states(), control.steps(), control.groups, control.state_table)
    with contextlib.ExitStack() as stack:
        stack.enter_context(modules_on(arguments, traced))
        stack.enter_context(optimizers_on(arguments, traced, *tables))
        stack.enter_context(control.watching_zero_grad(traced))
        stack.enter_context(tags.active())
        stack.enter_context(interception.patched())
        with interception:
            returned = arguments.step(*args, **kwargs)
        control.finish(traced)
        return _final_values(session, inputs, by_name), _results(session, returned)


def _final_values(
    session: Session, inputs: list[InputSpec], by_name: dict[tuple[str, str], Tensor]
) -> list[Tensor | None]:
    """Value of each parameter, buffer and state after the step; None for other inputs.

    Reads what modules and optimizers hold now, so a buffer or state that was assigned anew counts.
    """
    arguments = session.arguments
    held: dict[tuple[str, str], Any] = {}
    for prefix, module in arguments.modules.items():
        dot = f"{prefix}." if prefix else ""
        for name, tensor in module.named_buffers(remove_duplicate=False):
            held["buffer", dot + name] = tensor
    for name, optimizer in arguments.optimizers.items():
        real_names = iter(arguments.optimizer_parameters[name])
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owner = next(real_names)
                for key, value in optimizer.state[parameter].items():
                    held["optimizer_state", f"{owner}.{key}"] = value
    values: list[Tensor | None] = []
    for spec in inputs:
        if spec.kind not in ("parameter", "buffer", "optimizer_state"):
            values.append(None)
            continue
        before = by_name[spec.kind, spec.name]
        after = held.get((spec.kind, spec.name), before)
        if not isinstance(after, Tensor):
            after = torch.full((), after, dtype=before.dtype)
        values.append(after)
    return values


def _results(session: Session, returned: Any) -> list[Tensor]:
    leaves, spec = pytree.tree_flatten(returned)
    results: list[Tensor] = []
    kept: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            kept.append(ResultSlot(len(results)))
            results.append(leaf)
        elif isinstance(leaf, CONSTANT_TYPES):
            kept.append(leaf)
        else:
            raise CaptureError(
                f"the step returns a {type(leaf).__name__}, which a captured step cannot",
                code="E108",
                where=session.arguments.where,
                advice="return tensors and Python constants, alone or in dicts, lists and tuples",
            )
    session.result = ResultTree(spec, tuple(kept))
    return results
