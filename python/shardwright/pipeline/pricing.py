"""What a step in stages costs: its schedule, simulated with the times of its stages' plans."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Protocol

from shardwright import _core
from shardwright.capture.step_graph import StepGraph
from shardwright.errors import ConfigError, InternalError
from shardwright.pipeline.options import SearchClaim
from shardwright.pipeline.plan import (
    BoundaryTransfer,
    PipelineCertificate,
    PipelineStage,
    SimulatedStep,
)
from shardwright.plan import Plan


class _Directed(Protocol):
    @property
    def when(self) -> str: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...


def stage_schedule(
    kind: str, first_ranks: Sequence[int], num_microbatches: int, transfers: Iterable[_Directed]
) -> _core.Schedule:
    """The actions of every submesh.

    Args:
        kind: "gpipe", "1f1b", ...
        first_ranks: of every stage; stages that begin at one rank share a submesh.
        num_microbatches: per step.
        transfers: what goes between stages.

    Raises:
        ConfigError: E528 where stages that share ranks do not take turns, E551.
    """
    groups = list(dict.fromkeys(first_ranks))
    in_turn = [groups[stage % len(groups)] for stage in range(len(first_ranks))]
    if in_turn != list(first_ranks) or len(first_ranks) % len(groups):
        raise ConfigError(
            "stages that share ranks do not take turns.",
            code="E528",
            values=[f"first rank of every stage: {list(first_ranks)}"],
            advice="stage s on the ranks of stage s % R, equally many stages on each",
        )
    pairs: dict[tuple[int, int], bool] = {}  # whether gradients come back
    for transfer in transfers:
        if transfer.when == "forward":
            pairs.setdefault((transfer.source, transfer.target), False)
        elif transfer.when == "backward":
            pairs[transfer.target, transfer.source] = True
    return _core.make_schedule(
        kind,
        num_ranks=len(groups),
        num_microbatches=num_microbatches,
        stages_per_rank=len(first_ranks) // len(groups),
        edges=sorted(pair for pair, gradient in pairs.items() if gradient),
        edges_without_gradient=sorted(pair for pair, gradient in pairs.items() if not gradient),
    )


def microbatches_in_flight(schedule: _core.Schedule) -> tuple[int, ...]:
    """By stage: most microbatches whose activations it holds at once."""
    return tuple(schedule.check().most_in_flight)


def backward_weight_us(graph: StepGraph, plan: Plan) -> float:
    """Of a stage's backward of one microbatch what no other stage waits for.

    Args:
        graph: the stage's, of a cut that splits backward.
        plan: of the graph.
    """
    from shardwright.planning import sharded_graph

    sharded = sharded_graph(graph)
    costs = _core.node_costs(sharded, plan.to_core(sharded))
    late = {
        node.name
        for node in graph.graph_module.graph.nodes
        if node.meta.get("phase") == "backward" and node.meta.get("round") == 1
    }
    names = _core.node_names(sharded)
    total = sum(cost for name, cost in zip(names, costs, strict=True) if name in late)
    return min(total, plan.certificate.backward_us) / plan.num_microbatches


def simulate_stages(
    kind: str, stages: Sequence[PipelineStage], transfers: Sequence[BoundaryTransfer]
) -> tuple[_core.Schedule, _core.Simulation]:
    """The schedule of the stages and when everything of it happens.

    A stage begins when the parameters that others send it are there.
    """
    num_microbatches = stages[0].plan.num_microbatches
    schedule = stage_schedule(
        kind, [stage.first_rank for stage in stages], num_microbatches, transfers
    )
    edges = [(source, target) for source, target, _ in schedule.edges]
    times = {
        when: [
            sum(t.cost_us for t in transfers if (t.when, t.source, t.target) == (when, *ends(edge)))
            for edge in edges
        ]
        for when, ends in (("forward", _forwards), ("backward", _backwards))
    }
    exchange = _Exchange(schedule.rank_of_stage, [0.0] * schedule.num_ranks)
    exchange.add(t for t in transfers if t.when == "start")
    simulation = _core.simulate_schedule(
        schedule,
        forward_us=[stage.forward_us for stage in stages],
        backward_input_us=[stage.backward_us - stage.backward_weight_us for stage in stages],
        backward_weight_us=[stage.backward_weight_us for stage in stages],
        ready_us=[exchange.now_us[rank] for rank in schedule.rank_of_stage],
        edge_forward_us=times["forward"],
        edge_backward_us=times["backward"],
    )
    return schedule, simulation


def simulated_step(
    kind: str, stages: Sequence[PipelineStage], transfers: Sequence[BoundaryTransfer]
) -> SimulatedStep:
    """The whole step: what is sent first, the schedule, the update and its transfers.

    Every submesh goes on to the update when it is through with its own actions. Between rounds of
    transfers it computes nothing: all of its update comes last.
    """
    schedule, simulation = simulate_stages(kind, stages, transfers)
    rank_of_stage = schedule.rank_of_stage
    later = [transfer for transfer in transfers if transfer.when != "start"]
    undelayed = simulation.pipeline_us
    if len(later) < len(transfers):
        undelayed = simulate_stages(kind, stages, later)[1].pipeline_us
    updates = [0.0] * schedule.num_ranks  # stages that share ranks take turns
    for stage, rank in zip(stages, rank_of_stage, strict=True):
        updates[rank] += stage.update_us
    exchange = _Exchange(rank_of_stage, simulation.end_us)
    exchange.add(t for t in transfers if t.when == "update")
    without = max(map(operator.add, simulation.end_us, updates))
    ends = map(max, map(operator.add, exchange.now_us, updates), exchange.sent_us)
    time = max(simulation.pipeline_us, without, *ends)
    return SimulatedStep(
        time_us=time,
        start_us=simulation.pipeline_us - undelayed,
        pipeline_us=undelayed,
        update_us=max(without - simulation.pipeline_us, 0.0),
        exchange_us=time - max(without, simulation.pipeline_us),
        bubble_share=simulation.bubble_share,
        busy_us=tuple(
            stage.plan.num_microbatches * (stage.forward_us + stage.backward_us) for stage in stages
        ),
    )


def pipeline_certificate(time_us: float, claim: SearchClaim | None) -> PipelineCertificate:
    """What may be claimed of a pipeline of this time.

    Args:
        time_us: simulated.
        claim: of the search that found the stages; None without one.

    Raises:
        InternalError: E930 for a bound above the time.
    """
    if claim is None:
        return PipelineCertificate(time_us, None, None, None, "feasible")
    model, bound = claim.model_time_us, claim.lower_bound_us
    if bound > model:
        raise InternalError(
            "the claimed bound is above the time of the pipeline.",
            code="E930",
            values=[f"bound {bound} us, time {model} us"],
            advice="report this with the model and the cluster",
        )
    gap = (model - bound) / model if model else 0.0
    status = "optimal" if gap == 0 else "time_limit" if claim.out_of_time else "feasible"
    return PipelineCertificate(time_us, model, bound, gap, status)  # type: ignore[arg-type]


class _Exchange:
    """Transfers outside of microbatches, in the order of `StageSteps`.

    A sender goes on at once, and sends one value after the other; a receiver comes to a value when
    it has all those before, and waits.

    Args:
        rank_of_stage: submesh of every stage.
        begin_us: when every submesh comes to the first.

    Attributes:
        now_us: when every submesh goes on after those so far.
        sent_us: when it has sent all of them.
    """

    def __init__(self, rank_of_stage: Sequence[int], begin_us: Sequence[float]) -> None:
        self._rank_of_stage = rank_of_stage
        self.now_us = list(begin_us)
        self.sent_us = list(begin_us)

    def add(self, transfers: Iterable[BoundaryTransfer]) -> None:
        """What comes next."""
        for transfer in transfers:
            source = self._rank_of_stage[transfer.source]
            target = self._rank_of_stage[transfer.target]
            begin = max(self.now_us[source], self.sent_us[source], self.now_us[target])
            self.sent_us[source] = self.now_us[target] = begin + transfer.cost_us


def _forwards(edge: tuple[int, int]) -> tuple[int, int]:
    return edge


def _backwards(edge: tuple[int, int]) -> tuple[int, int]:
    return edge[1], edge[0]
