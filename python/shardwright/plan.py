"""Plan: the immutable answer of the planner, with its certificate, and its JSON form.

A plan names every node of the step with the specs of its operands and outputs, and every conversion
of a shared value. `Plan.load` checks the file's schema and that the plan is consistent with itself;
`Plan.validate` checks it against a step graph by recomputing the certificate.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from shardwright import _core
from shardwright.cluster import Cluster
from shardwright.errors import PlanError

if TYPE_CHECKING:
    from shardwright.capture.step_graph import StepGraph
    from shardwright.report.explain import Explanation

FORMAT = "shardwright.plan"
VERSION = 1

Phase = Literal["forward", "backward", "update"]

# What each mesh axis does to a tensor, one word per axis: "R"; "S2", sharded on atom 2; "S2.1" the
# same as second of the axes that shard this atom; "P" pending sum; "Pmax", "Pmin".
Spec: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class TensorSharding:
    """One tensor of the step and how it lies on the mesh.

    Attributes:
        shape: Global shape.
        dtype: torch's name without prefix.
        spec: Per mesh axis.
        text: The spec as printed, one symbol per dim: "S0 R", "R S01", "S0 R P1".
    """

    shape: tuple[int, ...]
    dtype: str
    spec: Spec
    text: str


@dataclass(frozen=True)
class OpSharding:
    """One node of the step graph (views have no choice of their own and are left out).

    Attributes:
        node: fx name.
        op: torch's qualified overload name; "input" for inputs.
        phase: "forward", "backward" or "update".
        module_path: Such as "layers.3.mlp.up", or empty.
        source: "train.py:41", or empty.
        input_kind: "parameter", "buffer", "optimizer_state", "batch", ... for inputs, else empty.
        input_name: Unsharded name of an input, else empty.
        operands: Spec of each tensor operand.
        outputs: One per output.
    """

    node: str
    op: str
    phase: Phase
    module_path: str
    source: str
    input_kind: str
    input_name: str
    operands: tuple[Spec, ...]
    outputs: tuple[TensorSharding, ...]


@dataclass(frozen=True)
class ConversionSharding:
    """A shared value held in a spec of its own for several consumers.

    Attributes:
        node: fx name of the value's node.
        output: Which output of it.
        group: 0 for the first phase that uses the value, 1 for the later ones.
        spec: How it is held.
        text: The spec as printed.
        from_first: Group 1 keeps the conversion of group 0 instead of making its own.
    """

    node: str
    output: int
    group: int
    spec: Spec
    text: str
    from_first: bool


@dataclass(frozen=True)
class GradientSharding:
    """The gradient of one parameter, in the parameter's dims.

    Attributes:
        parameter: Unsharded name.
        node: fx name of the node that makes it.
        made: Spec as backward makes it.
        made_text: The same as printed.
        held: Spec in which the update gets it.
        held_text: The same as printed.
    """

    parameter: str
    node: str
    made: Spec
    made_text: str
    held: Spec
    held_text: str


@dataclass(frozen=True)
class StagePlan:
    """One pipeline stage. A plan without pipelining has one.

    Attributes:
        mesh_shape: Sizes of the mesh axes.
        ranks: Global ranks in mesh order, row major.
        ops: In execution order.
        conversions: By value, then group.
        gradients: Of the parameters for which the step has one gradient, for reports.
    """

    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    ops: tuple[OpSharding, ...]
    conversions: tuple[ConversionSharding, ...]
    gradients: tuple[GradientSharding, ...] = ()


@dataclass(frozen=True)
class CollectiveCount:
    """Collectives of one kind in one step.

    Attributes:
        count: How many are emitted.
        bytes: Sum of the sizes of the ring formula.
        ring_bytes_per_device: What a ring moves through each device.
        cost_us: Sum of their prices.
    """

    count: int
    bytes: float
    ring_bytes_per_device: float
    cost_us: float


@dataclass(frozen=True)
class MemoryAtPeak:
    """Bytes of one device at the peak, by kind.

    Attributes:
        parameters: Stored and gathered parameters.
        gradients: Gradients and what the update makes of them.
        optimizer: Optimizer state.
        activations: Everything else that forward and backward compute, with what other microbatches
            in flight keep for their backward.
        other: Buffers, batch, constants.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    other: int

    @property
    def total(self) -> int:
        """Sum over the kinds."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.other


@dataclass(frozen=True)
class MemorySample:
    """Bytes alive on one device at one moment of the step.

    Attributes:
        moment: Counts ops and conversions; 0 is before the first.
        phase: Of the op that runs.
        memory: By kind.
    """

    moment: int
    phase: Phase
    memory: MemoryAtPeak


@dataclass(frozen=True)
class Certificate:
    """Cost and memory recomputed from graph and choices by code that the search does not use.

    Attributes:
        cost_us: Time of one step; compute_us and communication_us are its parts.
        compute_us: Time of the ops.
        communication_us: Time of the conversions.
        forward_us: Time of forward, over all microbatches; backward_us and update_us make up the
            rest of the cost.
        backward_us: Time of backward, over all microbatches.
        update_us: Time of what runs once per step.
        lower_bound_us: No plan on this mesh is faster, as far as proven.
        gap: (cost - lower bound) / cost.
        status: "optimal" when the gap is 0, else "feasible" or "time_limit".
        peak_memory_bytes: Of one device.
        peak_node: Node at which the peak occurs.
        at_peak: What the peak consists of.
        collectives: By kind ("all_reduce", ...).
        memory_timeline: Memory at some moments of the step, the peak among them.
    """

    cost_us: float
    compute_us: float
    communication_us: float
    forward_us: float
    backward_us: float
    update_us: float
    lower_bound_us: float
    gap: float
    status: Literal["optimal", "feasible", "time_limit"]
    peak_memory_bytes: int
    peak_node: str
    at_peak: MemoryAtPeak
    collectives: Mapping[str, CollectiveCount]
    memory_timeline: tuple[MemorySample, ...] = ()

    def __post_init__(self) -> None:
        frozen = MappingProxyType(dict(sorted(self.collectives.items())))
        object.__setattr__(self, "collectives", frozen)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return (_make_certificate, ({**values, "collectives": dict(self.collectives)},))


def _make_certificate(values: dict[str, Any]) -> Certificate:
    return Certificate(**values)


@dataclass(frozen=True)
class SearchStats:
    """How a plan was found; not saved with it.

    Attributes:
        seconds: By phase: capture, rules, model, solve, certificate.
        trials: Mesh shapes that were tried: shape, cost in us (None if nothing fits, or if the
            shape was bounded above the best plan), status.
        num_nodes: Decisions of the integer program of the plan's mesh.
        num_edges: Its cost tables in use.
    """

    seconds: Mapping[str, float]
    trials: tuple[tuple[tuple[int, ...], float | None, str], ...]
    num_nodes: int
    num_edges: int


@dataclass(frozen=True)
class PlanOrigin:
    """What a plan was searched with, to search again; neither saved nor pickled.

    Attributes:
        graph: The step as the planner reads it.
        memory_limit_bytes: The limit that was given, or None.
        forced: Specs that were forced, by exact name.
        shard_all_products: As given.
    """

    graph: _core.ShardedGraph
    memory_limit_bytes: int | None
    forced: Mapping[str, str]
    shard_all_products: bool


@dataclass(frozen=True, repr=False)
class Plan:
    """How one training step runs on a cluster.

    Attributes:
        graph_hash: Of the step graph it was made for.
        cluster: The machines.
        stages: Pipeline stages.
        num_microbatches: How often forward and backward run per step.
        certificate: Recomputed cost, bound and memory.
        microbatches_in_flight: How many hold activations at once, where the plan is of a stage of a
            pipeline; counts in the memory.
        recompute: "full" for a step whose backward makes forward again, else "none".
        stats: How it was found, None for a loaded plan.
        origin: What it was searched with, None for a plan that was loaded or sent.
    """

    graph_hash: str
    cluster: Cluster
    stages: tuple[StagePlan, ...]
    num_microbatches: int
    certificate: Certificate
    microbatches_in_flight: int = 1
    recompute: str = "none"
    stats: SearchStats | None = field(default=None, compare=False)
    origin: PlanOrigin | None = field(default=None, compare=False)

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """Mesh of the first stage."""
        return self.stages[0].mesh_shape

    @property
    def time_us(self) -> float:
        """Time of one step."""
        return self.certificate.cost_us

    @property
    def peak_memory_bytes(self) -> int:
        """Of one device."""
        return self.certificate.peak_memory_bytes

    @cached_property
    def inputs(self) -> Mapping[str, TensorSharding]:
        """Parameters, buffers, optimizer state and batch leaves by name."""
        found = {
            op.input_name: op.outputs[0]
            for stage in self.stages
            for op in stage.ops
            if op.input_kind and op.outputs
        }
        return MappingProxyType(found)

    def __str__(self) -> str:
        from shardwright.report.text import text_report

        return text_report(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The plan as notebooks show it."""
        from shardwright.report.html import html_fragment

        return html_fragment(self)

    def __getstate__(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "origin": None}

    def explain(self, name: str, *, time_limit_s: float = 60.0) -> Explanation:
        """Why an input lies as it does: the step's cost with each other sharding of it.

        Args:
            name: Unsharded name of a parameter, buffer, optimizer state or batch leaf.
            time_limit_s: Seconds for all searches together.

        Returns:
            A table of the alternatives; prints as text and shows in notebooks.

        Raises:
            ConfigError: E541 for a loaded plan, E542 for a name the step does not have.
        """
        from shardwright.report.explain import explain

        return explain(self, name, time_limit_s=time_limit_s)

    def to_dict(self) -> dict[str, Any]:
        """The plan as its JSON file holds it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "graph_hash": self.graph_hash,
            "cluster": self.cluster.to_dict(),
            "num_microbatches": self.num_microbatches,
            "microbatches_in_flight": self.microbatches_in_flight,
            "recompute": self.recompute,
            "certificate": plain(self.certificate),
            "stages": [plain(stage) for stage in self.stages],
        }

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """The inverse of `to_dict`.

        Raises:
            PlanError: E321 with a JSON pointer where the schema is broken, E322 for another format
                or version, E323 where the plan contradicts itself.
        """
        from shardwright.plan_schema import read_plan

        return read_plan(data)

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON; the same plan gives the same bytes."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Reads a file that `save` wrote. Whether it fits a step is `validate`'s to say.

        Raises:
            PlanError: E320 for a file that cannot be read, and what `from_dict` raises.
        """
        from shardwright.strict_json import read_file

        return cls.from_dict(read_file(path))

    def to_core(self, graph: _core.ShardedGraph) -> _core.Plan:
        """The same as the planner's own type, for one sharded graph.

        Raises:
            PlanError: E314 when the plan names nodes that the graph does not have.
        """
        number = {name: i for i, name in enumerate(_core.node_names(graph))}

        def index(name: str) -> int:
            if name not in number:
                raise PlanError(
                    f"the plan does not fit the step: there is no node {name!r}.",
                    code="E314",
                    advice="plan the step again; a plan fits only the step it was made for",
                )
            return number[name]

        stages = [
            _core.StagePlan(
                list(stage.mesh_shape),
                list(stage.ranks),
                [
                    _core.OpChoice(
                        index(op.node),
                        [core_spec(spec) for spec in op.operands],
                        [core_spec(output.spec) for output in op.outputs],
                    )
                    for op in stage.ops
                ],
                [
                    _core.ConversionChoice(
                        index(c.node), c.output, c.group, core_spec(c.spec), c.from_first
                    )
                    for c in stage.conversions
                ],
            )
            for stage in self.stages
        ]
        return _core.Plan(
            self.graph_hash,
            self.cluster.to_core(),
            stages,
            self.num_microbatches,
            self.microbatches_in_flight,
        )

    def step_of(self, step_graph: StepGraph) -> StepGraph:
        """A captured step as this plan runs it: in its microbatches, with its recomputation.

        Raises:
            PlanError: E325 when the plan was made for another step.
        """
        return same_step(step_graph, self.num_microbatches, self.graph_hash, self.recompute)

    def validate(self, step_graph: StepGraph) -> Certificate:
        """Recomputes the certificate on a step graph and compares.

        Args:
            step_graph: The captured step the plan is to run, cut into microbatches or not, with
                recomputation in it or not.

        Returns:
            The recomputed certificate. Its bound is the plan's own claim where cost and choices
            agree: a bound cannot be checked without searching again.

        Raises:
            PlanError: E325 when the graph is another one, E314 when choices do not fit the rules,
                E324 when cost, memory or collectives are not what the plan claims.
        """
        from shardwright.planning import sharded_graph

        graph = sharded_graph(self.step_of(step_graph))
        recomputed = certificate_from_core(_core.certify_plan(graph, self.to_core(graph)))
        _compare(self.certificate, recomputed)
        return dataclasses.replace(
            recomputed,
            lower_bound_us=self.certificate.lower_bound_us,
            gap=self.certificate.gap,
            status=self.certificate.status,
        )


def same_step(
    step_graph: StepGraph, num_microbatches: int, graph_hash: str, recompute: str = "none"
) -> StepGraph:
    """The step as a plan runs it: in its microbatches, with its recomputation, unless it is so.

    Raises:
        PlanError: E325 when the plan was made for another step.
    """
    from shardwright.pipeline.microbatches import split_microbatches
    from shardwright.pipeline.recompute import with_recomputation

    if step_graph.num_microbatches == 1:
        step_graph = split_microbatches(step_graph, num_microbatches)
    step_graph = with_recomputation(step_graph, recompute)
    found = step_graph.hash()
    if found != graph_hash:
        raise PlanError(
            "the plan was made for another step.",
            code="E325",
            values=[f"plan: {graph_hash[:16]}", f"step: {found[:16]}"],
            advice="plan this step; shapes, dtypes, model and optimizer must be the same",
        )
    return step_graph


_TIMES = (
    "cost_us", "compute_us", "communication_us", "forward_us", "backward_us", "update_us",
)  # fmt: skip


def _compare(claimed: Certificate, recomputed: Certificate) -> None:
    wrong = [
        f"{name}: plan says {getattr(claimed, name)!r}, recomputed {getattr(recomputed, name)!r}"
        for name in _TIMES
        if not math.isclose(getattr(claimed, name), getattr(recomputed, name), rel_tol=1e-9)
    ]
    wrong += [
        f"{name}: plan says {getattr(claimed, name)!r}, recomputed {getattr(recomputed, name)!r}"
        for name in ("peak_memory_bytes", "at_peak", "memory_timeline")
        if getattr(claimed, name) != getattr(recomputed, name)
    ]
    counts = [
        {kind: c.count for kind, c in certificate.collectives.items()}
        for certificate in (claimed, recomputed)
    ]
    if counts[0] != counts[1]:
        wrong.append(f"collectives: plan says {counts[0]}, recomputed {counts[1]}")
    if wrong:
        raise PlanError(
            "the plan fails its certificate.",
            code="E324",
            values=wrong,
            advice="plan the step again; the file was changed or made by another version",
        )


def plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def core_spec(spec: Spec) -> list[_core.Placement]:
    """The planner's placements of a spec."""
    placements = []
    for word in spec:
        if word == "R":
            placements.append(_core.Placement.replicate())
        elif word.startswith("S"):
            atom, _, order = word[1:].partition(".")
            placements.append(_core.Placement.shard(int(atom), int(order or 0)))
        else:
            placements.append(_core.Placement.partial(word[1:] or "sum"))
    return placements


def spec_from_core(placements: list[_core.Placement]) -> Spec:
    """A spec in words: the inverse of `core_spec`."""

    def word(placement: _core.Placement) -> str:
        if placement.kind == "S":
            return f"S{placement.atom}" + (f".{placement.order}" if placement.order else "")
        if placement.kind == "P":
            return "P" if placement.reduce == "sum" else f"P{placement.reduce}"
        return "R"

    return tuple(word(placement) for placement in placements)


def _memory_from_core(core: _core.MemoryAtPeak) -> MemoryAtPeak:
    return MemoryAtPeak(**{f.name: getattr(core, f.name) for f in dataclasses.fields(MemoryAtPeak)})


def certificate_from_core(core: _core.Certificate) -> Certificate:
    """The certificate as a plain value."""
    return Certificate(
        cost_us=core.cost_us,
        compute_us=core.compute_us,
        communication_us=core.communication_us,
        forward_us=core.forward_us,
        backward_us=core.backward_us,
        update_us=core.update_us,
        lower_bound_us=core.lower_bound_us,
        gap=core.gap,
        status=cast(Any, core.status),
        peak_memory_bytes=core.peak_memory_bytes,
        peak_node=core.peak_node,
        at_peak=_memory_from_core(core.at_peak),
        collectives={
            kind: CollectiveCount(
                **{f.name: getattr(count, f.name) for f in dataclasses.fields(CollectiveCount)}
            )
            for kind, count in core.collectives.items()
        },
        memory_timeline=tuple(
            MemorySample(sample.moment, cast(Any, sample.phase), _memory_from_core(sample.memory))
            for sample in core.memory_timeline
        ),
    )


def _gradients(
    stage: _core.StagePlan, graph: _core.ShardedGraph, nodes: list[dict[str, Any]]
) -> tuple[GradientSharding, ...]:
    made = {op.node: op.outputs for op in stage.ops}
    # A later group, which takes the place of an earlier one, is the one that the update reads.
    held = {(c.node, c.output): c.spec for c in stage.conversions}
    found = []
    for parameter, value in _core.parameter_gradients(graph):
        root, atoms = graph.root(value), graph.atoms(value)
        if root.node not in made:
            continue
        made_spec = made[root.node][root.output]
        held_spec = held.get((root.node, root.output), made_spec)
        found.append(
            GradientSharding(
                parameter=nodes[parameter]["input_name"],
                node=nodes[value.node]["name"],
                made=spec_from_core(made_spec),
                made_text=_core.print_spec(atoms, made_spec),
                held=spec_from_core(held_spec),
                held_text=_core.print_spec(atoms, held_spec),
            )
        )
    return tuple(found)


def plan_from_core(
    core: _core.Plan,
    graph: _core.ShardedGraph,
    cluster: Cluster,
    stats: SearchStats | None,
    origin: PlanOrigin | None = None,
) -> Plan:
    """The plan as a plain value that describes itself without the graph."""
    nodes = _core.describe_nodes(graph)

    def op_sharding(choice: _core.OpChoice) -> OpSharding:
        node = nodes[choice.node]
        return OpSharding(
            node=node["name"],
            op=node["op"],
            phase=node["phase"],
            module_path=node["module_path"],
            source=node["source"],
            input_kind=node["input_kind"],
            input_name=node["input_name"],
            operands=tuple(spec_from_core(spec) for spec in choice.operands),
            outputs=tuple(
                TensorSharding(
                    shape=tuple(value["shape"]),
                    dtype=value["dtype"],
                    spec=spec_from_core(spec),
                    text=_core.print_spec(value["atoms"], spec),
                )
                for value, spec in zip(node["outputs"], choice.outputs, strict=True)
            ),
        )

    def conversion(choice: _core.ConversionChoice) -> ConversionSharding:
        node = nodes[choice.node]
        return ConversionSharding(
            node=node["name"],
            output=choice.output,
            group=choice.group,
            spec=spec_from_core(choice.spec),
            text=_core.print_spec(node["outputs"][choice.output]["atoms"], choice.spec),
            from_first=choice.from_first,
        )

    return Plan(
        graph_hash=core.graph_hash,
        cluster=cluster,
        stages=tuple(
            StagePlan(
                mesh_shape=tuple(stage.mesh_shape),
                ranks=tuple(stage.ranks),
                ops=tuple(op_sharding(choice) for choice in stage.ops),
                conversions=tuple(conversion(choice) for choice in stage.conversions),
                gradients=_gradients(stage, graph, nodes),
            )
            for stage in core.stages
        ),
        num_microbatches=core.num_microbatches,
        microbatches_in_flight=core.microbatches_in_flight,
        certificate=certificate_from_core(core.certificate),
        stats=stats,
        origin=origin,
    )
