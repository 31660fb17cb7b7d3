"""Parity of a step in stages, simulated in one process, with the same step on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shardwright.capture import capture, read_inputs, sort_arguments, write_updates
from shardwright.cluster import Cluster
from shardwright.lowering.layout import join_parts
from shardwright.lowering.table import LocalRef
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.pipeline import Pipeline
from shardwright.pipeline.planning import plan_pipeline
from shardwright.pipeline.simulate import PipelineSimulation
from shardwright.planning import SearchRequest
from shardwright.testing import (
    CollectiveTally,
    MakeStep,
    ParityReport,
    build_step,
    compare_steps,
    default_dtype,
    gradient_instructions,
    named_results,
    stored_values,
)

_STORED = ("parameter", "buffer", "optimizer_state")


def check_pipeline_parity(
    make_step: MakeStep,
    *,
    meshes: Sequence[Sequence[int]],
    num_microbatches: int,
    schedule: str = "1f1b",
    boundaries: Sequence[str] | None = None,
    stages_per_rank: int = 1,
    recompute: str = "none",
    steps: int = 3,
    dtype: torch.dtype | None = torch.float64,
    cluster: Cluster | None = None,
    time_limit_s: float = 60.0,
) -> ParityReport:
    """Runs a step on one device and in stages on simulated ranks, and compares.

    Args:
        make_step: as for `shardwright.testing.check_parity`.
        meshes: shape of every stage's mesh; where several stages share ranks, of the first ones.
        num_microbatches: in how many parts the batch goes through.
        schedule: "gpipe", "1f1b", "interleaved_1f1b" or "zero_bubble".
        boundaries: modules that begin the second, third, ... stage.
        stages_per_rank: how many stages share their ranks.
        recompute: "full" makes every layer's forward again in its backward.
        steps: how many.
        dtype: models and batches are converted to it; None leaves them.
        cluster: the machines to plan for.
        time_limit_s: for the search of each stage.
    """
    num_devices = sum(math.prod(mesh) for mesh in meshes)
    machines = cluster or Cluster.local_cpu(num_devices)
    constraints = StageConstraints(
        len(meshes) * stages_per_rank,
        schedule,
        None if boundaries is None else tuple(boundaries),
        stage_meshes=tuple(tuple(mesh) for mesh in meshes),
        stages_per_rank=stages_per_rank,
    )
    with default_dtype(dtype):
        step, args = build_step(make_step, dtype)
        graph = split_microbatches(capture(step, args), num_microbatches)
        request = SearchRequest(time_limit_s=time_limit_s * len(meshes), recompute=recompute)
        pipeline = plan_pipeline(graph, machines, constraints, request)
        return run_pipeline_parity(make_step, pipeline, steps=steps, dtype=dtype)


def run_pipeline_parity(
    make_step: MakeStep, pipeline: Pipeline, *, steps: int, dtype: torch.dtype | None
) -> ParityReport:
    """As `check_pipeline_parity`, for a pipeline that is already lowered."""

    def simulate(step: Callable[..., Any], args: Sequence[Any]) -> _SimulatedPipeline:
        return _SimulatedPipeline(pipeline, step, args)

    errors, what, simulated = compare_steps(
        make_step, pipeline.stages.whole, simulate, steps=steps, dtype=dtype
    )
    collectives: dict[str, CollectiveTally] = {}
    for stage in simulated.simulation.stages:
        for kind in sorted(stage.counts):
            known = collectives.get(kind, CollectiveTally(0, 0))
            collectives[kind] = CollectiveTally(
                known.count + stage.counts[kind] // steps, known.bytes + stage.bytes[kind] // steps
            )
    mesh = tuple(program.table.num_ranks for program in pipeline.programs)
    return ParityReport(mesh, steps, None, errors, collectives, what)


class _SimulatedPipeline:
    """The stages of a step; the user's objects follow them."""

    def __init__(self, pipeline: Pipeline, step: Callable[..., Any], args: Sequence[Any]) -> None:
        self.pipeline = pipeline
        self.simulation = PipelineSimulation(pipeline)
        self._arguments = sort_arguments(step, args, {})
        graph = pipeline.stages.whole
        for spec, value in zip(graph.inputs, read_inputs(graph, self._arguments), strict=True):
            if spec.kind in _STORED:
                self.simulation.load(spec.name, value)
        self._names = [gradient_instructions(program) for program in pipeline.programs]
        self._gradients: dict[tuple[int, int], list[Tensor]] = {}

    def run(self, number: int) -> dict[str, Tensor]:
        """One step -> every compared tensor by name."""
        graph = self.pipeline.stages.whole
        values = read_inputs(graph, self._arguments, seed=number)
        passing = {
            spec.name: value
            for spec, value in zip(graph.inputs, values, strict=True)
            if spec.kind not in _STORED
        }
        self._gradients.clear()
        results = iter(self.simulation.step(passing, self._observe))
        outputs = [
            next(results)
            if spec.updates is None
            else self.simulation.whole(graph.inputs[spec.updates].name)
            for spec in graph.outputs
        ]
        returned = write_updates(graph, self._arguments, outputs)
        gradients = {}
        for (stage, instruction), parts in self._gradients.items():
            table = self.pipeline.programs[stage].table
            ref = table.instructions[instruction].args[1]
            assert isinstance(ref, LocalRef)
            name = f"grad {self._names[stage][instruction]}"
            gradients[name] = join_parts(parts, table.tensor(ref), table.mesh_shape)
        return {**named_results(returned), **gradients, **stored_values(self._arguments)}

    def _observe(self, stage: int, instruction: int, args: Sequence[Any], rank: int) -> None:
        if instruction in self._names[stage]:
            self._gradients.setdefault((stage, instruction), []).append(args[1].clone())

    def replica_errors(self) -> dict[str, float]:
        """State of which ranks hold different copies, as infinite errors."""
        return {
            f"replicas of {spec.name}": math.inf
            for spec in self.pipeline.stages.whole.inputs
            if spec.kind in _STORED and self.simulation.replicas_differ(spec.name)
        }
