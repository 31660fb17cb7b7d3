"""Tests for users' steps: does the parallel step compute what the one-device step computes?

`check_parity` runs a step twice, as written on one device and lowered on simulated ranks of a mesh,
and compares loss, gradients, parameters and optimizer state after every step. No process group and
no second process is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shardwright.capture import (
    StepArguments,
    StepGraph,
    capture,
    read_inputs,
    sort_arguments,
    write_updates,
)
from shardwright.cluster import Cluster
from shardwright.lowering.emitted import lower
from shardwright.lowering.layout import join_parts
from shardwright.lowering.program import Program
from shardwright.lowering.table import LocalRef
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.recompute import with_recomputation
from shardwright.plan import Plan
from shardwright.planning import plan as make_plan
from shardwright.runtime.simulate import Simulation

MakeStep = Callable[[], tuple[Callable[..., Any], Sequence[Any]]]

_STORED = ("parameter", "buffer", "optimizer_state")
_UPDATE_OPS = (
    "shardwright.adam_update.default",
    "shardwright.adam_amsgrad_update.default",
    "shardwright.adam_master_update.default",
    "shardwright.sgd_update.default",
    "shardwright.sgd_momentum_update.default",
)
# Differences count relative to the largest magnitude of the tensor, but at least to this share of
# the largest among tensors of its kind: gradients that are zero but for rounding have no scale.
_SCALE_FLOOR = 1e-3


@dataclass(frozen=True)
class CollectiveTally:
    """Collectives of one kind in one step: how many, and the sum of the bytes of their formula."""

    count: int
    bytes: int


@dataclass(frozen=True)
class ParityReport:
    """How far the parallel step is from the one-device step.

    Attributes:
        mesh: shape of the simulated mesh.
        steps: how many were run.
        plan: what was executed; None for a given program.
        errors: by name ("loss", "grad fc.weight", "parameter fc.weight", "state
            fc.weight.exp_avg", ...) the largest relative difference over all steps; 0 means equal
            bit for bit, apart from the sign of zero.
        collectives: by kind, per step.
        reference: "eager", or "captured graph" for steps with dropout, whose masks differ from
            torch's, and for batch normalisation in microbatches, whose statistics do.
    """

    mesh: tuple[int, ...]
    steps: int
    plan: Plan | None
    errors: dict[str, float]
    collectives: dict[str, CollectiveTally]
    reference: str

    @property
    def max_rel_error(self) -> float:
        """Largest of all errors."""
        return max(self.errors.values(), default=0.0)

    def __str__(self) -> str:
        worst = sorted(self.errors.items(), key=lambda item: -item[1])[:5]
        lines = [f"parity on mesh {self.mesh} over {self.steps} steps, against {self.reference}:"]
        lines += [f"  {error:.3e}  {name}" for name, error in worst]
        kinds = ", ".join(f"{c.count} {k} ({c.bytes} bytes)" for k, c in self.collectives.items())
        return "\n".join([*lines, f"  collectives per step: {kinds or 'none'}"])


def check_parity(
    make_step: MakeStep,
    *,
    mesh: Sequence[int] | int,
    steps: int = 3,
    plan: Plan | None = None,
    dtype: torch.dtype | None = torch.float64,
    forced: Mapping[str, str] | None = None,
    num_microbatches: int = 1,
    recompute: str = "none",
    memory_limit: str | int | float | None = None,
    cluster: Cluster | str | None = None,
) -> ParityReport:
    """Runs a step on one device and on simulated ranks, and compares.

    Args:
        make_step: returns `(step, args)`, freshly built and equally seeded at every call.
        mesh: shape of the mesh, such as `(2, 2)`.
        steps: how many.
        plan: plan to execute instead of the solver's.
        dtype: floating-point models and batches are converted to it; None leaves them.
        forced: specs that inputs must have, see `sw.plan`.
        num_microbatches: in how many parts the batch goes through forward and backward.
        recompute: "none", or "full": backward computes every layer's forward again.
        memory_limit: for the solver.
        cluster: the machines to plan for; by default CPU processes of this machine.

    Returns:
        Errors by name, and the collectives of one step.

    Raises:
        What capture, planning and lowering raise.

    Example:
        >>> report = check_parity(make_step, mesh=(2, 2))
        >>> assert report.max_rel_error < 1e-12
    """
    shape = (mesh,) if isinstance(mesh, int) else tuple(mesh)
    with default_dtype(dtype):
        step, args = build_step(make_step, dtype)
        graph = split_microbatches(capture(step, args), num_microbatches)
        graph = with_recomputation(graph, recompute)
        if plan is None:
            plan = make_plan(
                graph, cluster=cluster, mesh=shape, forced=forced, memory_limit=memory_limit
            )
        program = lower(graph, plan)
        report = run_parity(make_step, program, steps=steps, dtype=dtype)
    return ParityReport(shape, steps, plan, report.errors, report.collectives, report.reference)


def run_parity(
    make_step: MakeStep,
    program: Program,
    *,
    steps: int = 3,
    dtype: torch.dtype | None = torch.float64,
) -> ParityReport:
    """As `check_parity`, for a program that is already lowered."""

    def simulate(step: Callable[..., Any], args: Sequence[Any]) -> _SimulatedStep:
        return _SimulatedStep(program, step, args)

    errors, what, simulated = compare_steps(
        make_step, program.step_graph, simulate, steps=steps, dtype=dtype
    )
    simulation = simulated.simulation
    collectives = {
        kind: CollectiveTally(simulation.counts[kind] // steps, simulation.bytes[kind] // steps)
        for kind in sorted(simulation.counts)
    }
    return ParityReport(program.table.mesh_shape, steps, None, errors, collectives, what)


class SimulatedStep(Protocol):
    """A lowered step on simulated ranks."""

    def run(self, number: int) -> dict[str, Tensor]:
        """One step -> every compared tensor by name."""
        ...

    def replica_errors(self) -> dict[str, float]:
        """State of which ranks hold different copies, as infinite errors."""
        ...


Simulated = TypeVar("Simulated", bound=SimulatedStep)


def compare_steps(
    make_step: MakeStep,
    graph: StepGraph,
    simulate: Callable[[Callable[..., Any], Sequence[Any]], Simulated],
    *,
    steps: int,
    dtype: torch.dtype | None,
) -> tuple[dict[str, float], str, Simulated]:
    """Runs a step on one device and as `simulate` has it.

    Returns:
        Errors by name, the kind of reference, and what `simulate` made.
    """
    with default_dtype(dtype):
        step, args = build_step(make_step, dtype)
        has_dropout = any(spec.kind == "rng" for spec in graph.inputs)
        has_statistics = graph.num_microbatches > 1 and any(
            "batch_norm_count" in node.meta for node in graph.graph_module.graph.nodes
        )
        reference: _Reference
        if has_dropout or has_statistics:
            reference = _CapturedReference(graph, sort_arguments(step, args, {}))
        else:
            reference = _EagerReference(step, args)
        simulated = simulate(*build_step(make_step, dtype))
        errors: dict[str, float] = {}
        for number in range(steps):
            expected = reference.run(number)
            for name, error in _compare(expected, simulated.run(number)).items():
                errors[name] = max(errors.get(name, 0.0), error)
            for name, error in simulated.replica_errors().items():
                errors[name] = max(errors.get(name, 0.0), error)
    what = "captured graph" if has_dropout or has_statistics else "eager"
    return errors, what, simulated


class _Reference:
    """A one-device run."""

    def run(self, number: int) -> dict[str, Tensor]:
        """One step -> every compared tensor by name."""
        raise NotImplementedError


class _EagerReference(_Reference):
    """The user's step as written."""

    def __init__(self, step: Callable[..., Any], args: Sequence[Any]) -> None:
        self._step = step
        self._args = args
        self._arguments = sort_arguments(step, args, {})
        self._gradients: dict[str, Tensor] = {}
        names = self._arguments.parameter_name()
        for optimizer in self._arguments.optimizers.values():
            optimizer.register_step_pre_hook(self._note(names))

    def _note(self, names: Mapping[int, str]) -> Callable[..., None]:
        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        name = f"grad {names[id(parameter)]}"
                        self._gradients[name] = parameter.grad.detach().clone()

        return hook

    def run(self, number: int) -> dict[str, Tensor]:
        self._gradients.clear()
        results = self._step(*self._args)
        return {**named_results(results), **self._gradients, **stored_values(self._arguments)}


class _CapturedReference(_Reference):
    """The captured graph, op by op."""

    def __init__(self, graph: StepGraph, arguments: StepArguments) -> None:
        self._graph = graph
        self._arguments = arguments

    def run(self, number: int) -> dict[str, Tensor]:
        values = read_inputs(self._graph, self._arguments, seed=number)
        outputs = self._graph.run_reference(values)
        results = write_updates(self._graph, self._arguments, outputs)
        return {**named_results(results), **stored_values(self._arguments)}


class _SimulatedStep:
    """The lowered step; the user's objects follow it, so that schedules and state are read back."""

    def __init__(self, program: Program, step: Callable[..., Any], args: Sequence[Any]) -> None:
        self.program = program
        self.simulation = Simulation(program)
        self._arguments = sort_arguments(step, args, {})
        self._kept = [i for i, s in enumerate(program.inputs) if s.kind in _STORED]
        values = read_inputs(program.step_graph, self._arguments)
        for index in self._kept:
            self.simulation.load(index, values[index])
        self._gradient_names = gradient_instructions(program)
        self._gradients: dict[str, list[Tensor]] = {}

    def run(self, number: int) -> dict[str, Tensor]:
        """One step -> every compared tensor by name."""
        graph = self.program.step_graph
        values = read_inputs(graph, self._arguments, seed=number)
        passing = {i: v for i, v in enumerate(values) if i not in self._kept}
        self._gradients.clear()
        results = iter(self.simulation.step(passing, self._observe))
        outputs = [
            next(results) if spec.updates is None else self.simulation.whole(spec.updates)
            for spec in graph.outputs
        ]
        returned = write_updates(graph, self._arguments, outputs)
        table = self.program.table
        gradients = {}
        for name, parts in self._gradients.items():
            ref = table.instructions[self._instruction_of[name]].args[1]
            assert isinstance(ref, LocalRef)
            gradients[f"grad {name}"] = join_parts(parts, table.tensor(ref), table.mesh_shape)
        return {**named_results(returned), **gradients, **stored_values(self._arguments)}

    @property
    def _instruction_of(self) -> dict[str, int]:
        return {name: index for index, name in self._gradient_names.items()}

    def _observe(self, instruction: int, args: Sequence[Any], rank: int) -> None:
        name = self._gradient_names.get(instruction)
        if name is not None:
            self._gradients.setdefault(name, []).append(args[1].clone())

    def replica_errors(self) -> dict[str, float]:
        """State of which ranks hold different copies, as infinite errors."""
        return {
            f"replicas of {self.program.inputs[index].name}": math.inf
            for index in self._kept
            if self.simulation.replicas_differ(index)
        }


def gradient_instructions(program: Program) -> dict[int, str]:
    """Update instructions -> name of the parameter they update."""
    # What an update op takes first is the parameter or, where it has one, its master copy.
    names = {
        node.name: spec.parameter or spec.name
        for node, spec in zip(program.step_graph.placeholders, program.inputs, strict=True)
    }
    found = {}
    for index, instruction in enumerate(program.table.instructions):
        if instruction.op in _UPDATE_OPS:
            parameter = program.graph_node(instruction.node).args[0]
            name = names.get(getattr(parameter, "name", ""))
            if name is not None:
                found[index] = name
    return found


def named_results(results: Any) -> dict[str, Tensor]:
    """The tensors that a step returned, by name."""
    tensors = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    if len(tensors) == 1:
        return {"loss": tensors[0].detach()}
    return {f"result {i}": tensor.detach() for i, tensor in enumerate(tensors)}


def stored_values(arguments: StepArguments) -> dict[str, Tensor]:
    """Copies of parameters, buffers and optimizer state by name."""
    found = {f"parameter {n}": p.detach().clone() for n, p in arguments.parameters.items()}
    found |= {f"buffer {n}": b.detach().clone() for n, b in arguments.buffers.items()}
    names = arguments.parameter_name()
    for optimizer in arguments.optimizers.values():
        for parameter, entry in optimizer.state.items():
            for key, value in entry.items():
                if isinstance(value, Tensor):
                    found[f"state {names[id(parameter)]}.{key}"] = value.detach().clone()
    return found


def _compare(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, float]:
    """Relative difference by name; infinite where one side lacks a tensor the other has."""
    scales: dict[str, float] = {}
    for name, tensor in expected.items():
        kind = _kind(name)
        scales[kind] = max(scales.get(kind, 0.0), _magnitude(tensor))
    errors = {}
    sides = (expected, found)
    has_gradients = all(any(name.startswith("grad ") for name in side) for side in sides)
    for name in sorted({*expected, *found}):
        if name.startswith("grad ") and not has_gradients:
            # An optimizer traced through its own code has no gradient operand, and the captured
            # graph as a reference tells none; the state made from them is compared.
            continue
        if name not in expected or name not in found:
            errors[name] = math.inf
            continue
        scale = max(_magnitude(expected[name]), _SCALE_FLOOR * scales[_kind(name)])
        errors[name] = _difference(expected[name], found[name], scale)
    return errors


def _kind(name: str) -> str:
    kind, _, rest = name.partition(" ")
    return f"{kind} {rest.rpartition('.')[2]}" if kind == "state" else kind


def _magnitude(tensor: Tensor) -> float:
    if tensor.numel() == 0:
        return 0.0
    largest = float(tensor.double().abs().max())
    return largest if math.isfinite(largest) else 0.0


def _difference(expected: Tensor, found: Tensor, scale: float) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    left, right = expected.double(), found.double()
    same = (left == right) | (left.isnan() & right.isnan())
    if bool(same.all()):
        return 0.0
    distance = float((left - right).abs()[~same].max())
    return distance / scale if math.isfinite(distance) and scale > 0 else math.inf


def build_step(
    make_step: MakeStep, dtype: torch.dtype | None
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A fresh step with its arguments, converted."""
    step, args = make_step()
    if dtype is not None:
        for leaf in pytree.tree_leaves(args):
            if isinstance(leaf, nn.Module):
                leaf.to(dtype)
        args = pytree.tree_map_only(
            Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, tuple(args)
        )
    return getattr(step, "__wrapped__", step), args


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Makes a dtype torch's default for a while."""
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)
