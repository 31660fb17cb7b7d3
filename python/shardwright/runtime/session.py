"""Everything that one parallelized step keeps between calls: world, state, prepared programs."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shardwright.capture import StepArguments, StepGraph, capture, signature, sort_arguments
from shardwright.capture.optimizers import read_hyper
from shardwright.capture.reference import microbatch_value
from shardwright.errors import CollectiveError, ConfigError
from shardwright.lowering.check import CheckReport, check_program
from shardwright.lowering.emitted import lower
from shardwright.lowering.program import CollectiveSite, Program
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.recompute import with_recomputation
from shardwright.plan import Plan
from shardwright.runtime import agreement
from shardwright.runtime.attribution import Heartbeat, judge
from shardwright.runtime.dtensor_form import ShardForm
from shardwright.runtime.executor import Executor
from shardwright.runtime.groups import (
    MeshGroups,
    World,
    check_backend,
    check_mesh_size,
    find_world,
    leave_standing,
    make_groups,
)
from shardwright.runtime.ownership import unsharded_shapes
from shardwright.runtime.sharded_state import ShardedState

_CHECKED_STEPS = 3


class Planner(Protocol):
    """Makes a plan for a captured step: `(graph, world_size, device, mesh, specs)`.

    `mesh` and `specs` are those that already sharded state lies in, None before.
    """

    def __call__(
        self,
        graph: StepGraph,
        world_size: int,
        device: torch.device,
        mesh: tuple[int, ...] | None,
        specs: Mapping[str, str],
    ) -> Plan:
        """The plan."""
        ...


class Runnable(Protocol):
    """What runs a step on this rank, see `Executor`."""

    def step(self, *inputs: Sequence[Mapping[int, Tensor]]) -> list[Tensor]:
        """Inputs per microbatch, of every program of this rank -> results of the whole step."""
        ...


@dataclass(frozen=True)
class Part:
    """One program that this rank runs: that of the step, or of a stage.

    Attributes:
        graph, plan, program: the chain.
    """

    graph: StepGraph
    plan: Plan
    program: Program


@dataclass(frozen=True)
class Lowered:
    """A captured step, planned and lowered for this rank.

    Attributes:
        parts: what this rank runs: the step, or its stages; all on one mesh.
        facts: what must be equal on all ranks.
        meshes: of every group of ranks.
        first_ranks: first rank of every group.
        group: of this rank.
    """

    parts: tuple[Part, ...]
    facts: Mapping[str, str]
    meshes: tuple[tuple[int, ...], ...]
    first_ranks: tuple[int, ...]
    group: int


@dataclass
class Prepared:
    """One captured signature, planned, lowered and ready.

    Attributes:
        parts, executor: the programs of this rank, and what runs them.
        batch_leaves: batch argument -> position among the leaves of the call's arguments.
        optimizer_leaves: argument path of each optimizer -> likewise.
        fixed: by part the graph inputs that never change, as local values.
        num_steps: how often it ran.
    """

    parts: tuple[Part, ...]
    executor: Runnable
    batch_leaves: dict[str, int]
    optimizer_leaves: dict[str, int]
    fixed: tuple[dict[int, Tensor], ...]
    num_steps: int = 0

    @property
    def graph(self) -> StepGraph:
        """Of the first part; what does not depend on the stage is the same in all."""
        return self.parts[0].graph

    @property
    def plan(self) -> Plan:
        """Of the first part."""
        return self.parts[0].plan

    @property
    def program(self) -> Program:
        """Of the first part."""
        return self.parts[0].program

    def read_hyper(self, name: str, leaves: Sequence[Any]) -> float:
        """Present value of a hyper-parameter, from the leaves of a call's arguments."""
        return read_hyper({n: leaves[i] for n, i in self.optimizer_leaves.items()}, name)


@dataclass
class Session:
    """State of one decorated step.

    Attributes:
        step: the user's function.
        planner: makes plans, called on rank 0 only.
        environment: environment variables.
        options: what must be equal on all ranks, as text.
        timeout: of collectives.
        num_microbatches: in how many parts the batch goes through forward and backward; None
            leaves it to the plan.
        recompute: "full" makes forward again in backward, where the step has no stages.
        check: whether rank 0 proves every program with the static checker before it runs.
        check_report: of the newest program, on rank 0.
    """

    step: Callable[..., Any]
    planner: Planner
    environment: Mapping[str, str]
    options: Mapping[str, str]
    timeout: timedelta
    num_microbatches: int | None = 1
    check: bool = True
    recompute: str = "none"
    check_report: CheckReport | None = None
    prepared: dict[Hashable, list[Prepared]] = field(default_factory=dict)
    newest: Prepared | None = None
    world: World | None = None
    state: ShardedState | None = None
    _device: torch.device | None = None
    _groups: MeshGroups | None = None
    _mesh: tuple[int, ...] | None = None
    _heartbeat: Heartbeat | None = None
    _seed: int = 0
    _num_calls: int = 0
    _objects: list[weakref.ref[Any]] = field(default_factory=list)

    @property
    def holds_objects(self) -> bool:
        """Whether a call came so far that modules were divided."""
        return bool(self._objects)

    @property
    def is_stale(self) -> bool:
        """Whether a module or optimizer of it no longer exists."""
        return any(reference() is None for reference in self._objects)

    def knows(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a module or optimizer among the arguments is one of an earlier call."""
        return any(self._is_known(item) for item in _objects_of(args, kwargs))

    def _is_known(self, item: object) -> bool:
        return any(reference() is item for reference in self._objects)

    def _check_objects(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What is held under a name must be what the arguments have under it."""
        new = [item for item in _objects_of(args, kwargs) if not self._is_known(item)]
        if new and self.state is not None:
            self.state.check_same(self._held_arguments(args, kwargs))

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One step on the user's arguments; returns what the user's function returns."""
        try:
            if self._heartbeat is not None:
                self._heartbeat.note("running")
            return self._call(args, kwargs)
        except agreement.LostContactError as error:
            leave_standing()
            failure = {
                "step": self._num_calls,
                "ordinal": -1,
                "op": "comparing the ranks",
                "group": "",
                "bytes": 0,
                "reason": str(error),
            }
            everyone = list(range(self.world.size)) if self.world is not None else []
            raise judge(self._heartbeat, failure, None, everyone) from error
        except BaseException as error:
            leave_standing()
            if self._heartbeat is not None and not isinstance(error, CollectiveError):
                self._heartbeat.note(f"raised {type(error).__name__}: {error}"[:200])
            raise

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_objects(args, kwargs)
        key = signature(args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        ready = self._find(key, leaves)
        hyper: dict[str, float] = {}
        if ready is None:
            ready, hyper = self._prepare(args, kwargs)
            self.prepared.setdefault(key, []).append(ready)
            later = signature(args, kwargs)  # optimizers now hold their state
            if later != key:
                self.prepared.setdefault(later, []).append(ready)
        self.newest = ready
        self._objects += [
            weakref.ref(item) for item in _objects_of(args, kwargs) if not self._is_known(item)
        ]
        inputs = self._inputs(ready, leaves, hyper)
        results = ready.executor.step(*inputs)
        self._num_calls += 1
        ready.num_steps += 1
        return ready.graph.result_tree.rebuild(results)

    def _find(self, key: Hashable, leaves: Sequence[Any]) -> Prepared | None:
        """What was prepared for this signature with the present guarded hyper-parameters."""
        for ready in self.prepared.get(key, ()):
            guards = ready.graph.guards.items()
            if all(ready.read_hyper(name, leaves) == value for name, value in guards):
                return ready
        return None

    def _inputs(
        self,
        ready: Prepared,
        leaves: Sequence[Any],
        hyper: Mapping[str, float],
    ) -> list[list[dict[int, Tensor]]]:
        """Per part and microbatch the local value of every graph input.

        `hyper` has values read before state existed.
        """
        assert self.state is not None
        self.state.refresh()
        batch = {name: leaves[position] for name, position in ready.batch_leaves.items()}
        if ready.num_steps < _CHECKED_STEPS and self.world is not None:
            agreement.check_equal_tensors(
                batch, "batches", "E452",
                "feed the same whole batch on every rank; shardwright divides it (use one data "
                "loader with the same seed, no DistributedSampler)", self.world,
            )  # fmt: skip
        wanted = {s.name for p in ready.parts for s in p.graph.inputs if s.kind == "hyper"}
        now = {name: ready.read_hyper(name, leaves) for name in wanted - hyper.keys()}
        return [
            self._part_inputs(part, fixed, batch, {**hyper, **now})
            for part, fixed in zip(ready.parts, ready.fixed, strict=True)
        ]

    def _part_inputs(
        self,
        part: Part,
        fixed: Mapping[int, Tensor],
        batch: Mapping[str, Tensor],
        hyper: Mapping[str, float],
    ) -> list[dict[int, Tensor]]:
        assert self.state is not None
        inputs: dict[int, Tensor] = dict(fixed)
        passing: dict[int, Tensor] = {}  # what microbatches may have their own values of
        for index, spec in enumerate(part.graph.inputs):
            if spec.name in self.state.locals and spec.kind not in ("batch", "boundary"):
                inputs[index] = self.state.locals[spec.name]
            elif spec.kind == "batch":
                passing[index] = batch[spec.leaf or spec.name]
            elif spec.kind == "hyper":
                inputs[index] = torch.tensor(hyper[spec.name], dtype=torch.float64)
            elif spec.kind == "rng":
                passing[index] = torch.tensor(self._step_seed(), dtype=torch.int64)
        return [
            inputs | {i: self._microbatch(part, i, whole, n) for i, whole in passing.items()}
            for n in range(part.graph.num_microbatches)
        ]

    def _microbatch(self, part: Part, index: int, whole: Tensor, microbatch: int) -> Tensor:
        value = microbatch_value(part.graph, index, whole, microbatch)
        is_batch = part.graph.inputs[index].kind == "batch"
        return self._shard(part.program, index, value) if is_batch else value

    def _step_seed(self) -> int:
        """Seed of this step's dropout masks, equal on all ranks."""
        return (self._seed + self._num_calls * 0x9E3779B97F4A7C15) % (1 << 63)

    def _shard(self, program: Program, index: int, whole: Tensor) -> Tensor:
        form = self._form(program, index)
        assert self._device is not None
        whole = whole.detach().to(self._device)
        if form is None or form.is_replicated:
            return whole
        return form.cut(whole)

    def _form(self, program: Program, index: int) -> ShardForm | None:
        tensor = program.input_tensor(index)
        if tensor is None:
            return None
        assert self._groups is not None
        mesh = program.table.mesh_shape
        coordinate = program.table.coordinate(self._mesh_rank)
        return ShardForm(tensor, mesh, coordinate, self._groups)

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Prepared, dict[str, float]]:
        """Captures, plans, lowers and shards; every rank at the same time."""
        self._device = _device_of(args, kwargs)
        if self.world is None:
            self.world = find_world(self.environment, self._device, self.timeout)
            check_backend(self.world, self._device)
            self._start_heartbeat(self.world)
        world = self.world
        captured, error = None, None
        try:
            captured = self._sorted(args, kwargs)
        except Exception as caught:
            error = caught
        agreement.check_all_succeeded(error, "capturing the step", world)
        assert captured is not None
        graph, arguments = captured
        agreement.check_facts(agreement.step_facts(self.options, graph.inputs, graph.hash()), world)
        lowered = self._lowered(graph)
        first = lowered.parts[0]
        if self._groups is None:
            self._mesh = first.plan.mesh_shape
            self._groups = make_groups(
                lowered.meshes, lowered.first_ranks, lowered.group, world, self._device,
                self.timeout,
            )  # fmt: skip
            self.state = ShardedState(
                self._mesh, first.program.table.coordinate(self._mesh_rank), self._groups
            )
            self._seed = agreement.from_first(int(torch.randint(1 << 62, ()).item()), world)
        agreement.check_facts(lowered.facts, world)
        hyper = {
            s.name: read_hyper(arguments.optimizers, s.name)
            for s in graph.inputs if s.kind == "hyper"
        }  # fmt: skip
        assert self.state is not None
        fresh = {n: p for n, p in arguments.parameters.items() if n not in self.state.locals}
        agreement.check_equal_tensors(
            fresh, "parameters", "E453",
            "build the model from the same seed on every rank, or load the same checkpoint", world,
        )  # fmt: skip
        for part in lowered.parts:
            self.state.adopt(part.program, arguments)
        self._adopted(arguments)
        executor = self._executor(lowered)
        leaf_of = {name: i for i, name in enumerate(arguments.names)}
        batch = {s.leaf or s.name for s in graph.inputs if s.kind == "batch"}
        optimizers = {name: leaf_of[name] for name in arguments.optimizers}
        fixed = tuple(
            {
                i: self._shard(part.program, i, part.graph.constants[s.name])
                for i, s in enumerate(part.graph.inputs)
                if s.kind == "constant"
            }
            for part in lowered.parts
        )
        batch_leaves = {name: leaf_of[name] for name in sorted(batch)}
        return Prepared(lowered.parts, executor, batch_leaves, optimizers, fixed), hyper

    def _adopted(self, arguments: StepArguments) -> None:
        """Called when this rank's shards have taken the place of the whole tensors."""

    @property
    def _mesh_rank(self) -> int:
        """Position of this process in the mesh of its program."""
        assert self.world is not None
        return self.world.rank

    def _lowered(self, graph: StepGraph) -> Lowered:
        """Plans on rank 0 and lowers the plan on every rank."""
        assert self.world is not None
        plan = self._plan(graph)
        graph = plan.step_of(graph)
        program = lower(graph, plan)
        check_mesh_size(plan.mesh_shape, self.world.size)
        text = json.dumps(plan.to_dict(), sort_keys=True)
        facts = agreement.program_facts(text, program)
        return Lowered((Part(graph, plan, program),), facts, (plan.mesh_shape,), (0,), 0)

    def _executor(self, lowered: Lowered) -> Runnable:
        assert self._groups is not None
        assert self._device is not None
        return Executor(
            lowered.parts[0].program,
            self._mesh_rank,
            self._groups.names,
            self._device,
            self._on_failure,
        )

    def _sorted(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepGraph, StepArguments]:
        """The captured step, and its arguments with the tensors they really hold."""
        if self.state is None:
            return self._captured(args, kwargs), sort_arguments(self.step, args, kwargs)
        modules = _leaves_of(args, kwargs, nn.Module)
        optimizers = _leaves_of(args, kwargs, torch.optim.Optimizer)
        with unsharded_shapes(modules, optimizers):
            graph = self._captured(args, kwargs)
        return graph, self._held_arguments(args, kwargs)

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepGraph:
        graph = capture(self.step, args, kwargs)
        if self.num_microbatches is None:
            return graph
        return with_recomputation(split_microbatches(graph, self.num_microbatches), self.recompute)

    def _held_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepArguments:
        """The arguments of a later call, with the tensors they really hold."""
        modules = _leaves_of(args, kwargs, nn.Module)
        optimizers = _leaves_of(args, kwargs, torch.optim.Optimizer)
        with unsharded_shapes(modules, optimizers) as real:
            shown = sort_arguments(self.step, args, kwargs)
        parameters = {name: real[id(p)] for name, p in shown.parameters.items()}
        buffers = {name: real[id(b)] for name, b in shown.buffers.items()}
        return dataclasses.replace(shown, parameters=parameters, buffers=buffers)

    def _plan(self, graph: StepGraph) -> Plan:
        """Rank 0's plan, or its error on every rank."""
        world = self.world
        assert world is not None
        assert self._device is not None
        answer: tuple[str, Any] = ("", None)
        plan: Plan | None = None
        if world.rank == 0:
            stored: dict[str, str] = {}
            for earlier in (r for group in self.prepared.values() for r in group):
                stored.update(_stored_specs(earlier))
            specs = {s.name: stored[s.name] for s in graph.inputs if s.name in stored}
            try:
                plan = self.planner(graph, world.size, self._device, self._mesh, specs)
                check_mesh_size(plan.mesh_shape, world.size)
                if self.check:
                    self.check_report = check_program(lower(plan.step_of(graph), plan))
                answer = ("plan", json.dumps(plan.to_dict()))
            except Exception as error:
                answer = ("error", agreement.portable(error))
        kind, value = agreement.from_first(answer, world)
        if kind == "error":
            raise value
        return plan if plan is not None else Plan.from_dict(json.loads(value))

    def _start_heartbeat(self, world: World) -> None:
        if world.has_group and world.size > 1:
            store = dist.distributed_c10d._get_default_store()
            self._heartbeat = Heartbeat(store, world.rank, world.size)
            self._heartbeat.start()

    def _on_failure(
        self, failure: dict[str, Any], site: CollectiveSite | None, error: BaseException
    ) -> BaseException:
        group: list[int] = []
        if site is not None and self.newest is not None and self.world is not None:
            group = self.newest.program.table.axis_group(self.world.rank, site.axis)
        return judge(self._heartbeat, failure, site, group)


def _objects_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    modules = _leaves_of(args, kwargs, nn.Module)
    return [*modules, *_leaves_of(args, kwargs, torch.optim.Optimizer)]


def _leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any], kind: type) -> list[Any]:
    found: list[Any] = []
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, kind) and all(leaf is not known for known in found):
            found.append(leaf)
    return found


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Device of the parameters.

    Raises:
        ConfigError: E503 for parameters on meta or on several devices.
    """
    devices: dict[torch.device, str] = {}
    for module in _leaves_of(args, kwargs, nn.Module):
        for name, parameter in module.named_parameters():
            devices.setdefault(parameter.device, name)
    if torch.device("meta") in devices:
        raise ConfigError(
            "the model has parameters on the meta device, which cannot be trained.",
            code="E503",
            values=[f"first of them: {devices[torch.device('meta')]}"],
            advice="materialise the model before the step (model.to_empty and an initialisation); "
            "sw.plan works with meta parameters",
        )
    if len(devices) > 1:
        raise ConfigError(
            "the model's parameters lie on several devices.",
            code="E503",
            values=[f"{device}: {name}, ..." for device, name in devices.items()],
            advice="put the whole model on the device of this rank; shardwright divides it",
        )
    return next(iter(devices), torch.device("cpu"))


def _stored_specs(ready: Prepared) -> dict[str, str]:
    """Printed specs of parameters, buffers and optimizer state under a plan."""
    stored = {
        s.name for s in ready.graph.inputs if s.kind in ("parameter", "buffer", "optimizer_state")
    }
    return {name: t.text for name, t in ready.plan.inputs.items() if name in stored}
