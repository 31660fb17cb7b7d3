"""All stages of a pipeline in one process, for tests and checks.

Every stage runs its own list of actions on simulated ranks; a send puts shards on their way and a
receive waits until they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shardwright.errors import InternalError
from shardwright.lowering.layout import join_parts
from shardwright.lowering.table import LocalRef
from shardwright.pipeline.pipeline import Pipeline
from shardwright.pipeline.stage_graphs import Transfer
from shardwright.pipeline.stage_steps import StageSteps, Transport
from shardwright.pipeline.transfers import PlannedTransfer
from shardwright.runtime.section_loop import StepRun
from shardwright.runtime.simulate import Simulation
from shardwright.runtime.simulated_transfer import simulate_transfer

_STORED = ("parameter", "buffer", "optimizer_state")
RankValues = list[Any]
StageObserver = Callable[[int, int, Sequence[Any], int], None]


class PipelineSimulation:
    """A pipeline on simulated ranks, with its state.

    Attributes:
        pipeline: what runs.
        stages: the simulated ranks of every stage.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.stages = [Simulation(program) for program in pipeline.programs]
        self._input_of = [
            {spec.name: i for i, spec in enumerate(program.inputs) if spec.kind != "boundary"}
            for program in pipeline.programs
        ]

    def load(self, name: str, whole: Tensor) -> None:
        """Gives a stored input its value in every stage that has it."""
        for stage, inputs in zip(self.stages, self._input_of, strict=True):
            if name in inputs:
                stage.load(inputs[name], whole)

    def whole(self, name: str) -> Tensor:
        """Present value of a stored input, from the first stage that has it."""
        stage, index = self._holders(name)[0]
        return stage.whole(index)

    def replicas_differ(self, name: str) -> bool:
        """Whether ranks of one stage hold different copies of a stored input."""
        return any(stage.replicas_differ(index) for stage, index in self._holders(name))

    def _holders(self, name: str) -> list[tuple[Simulation, int]]:
        pairs = zip(self.stages, self._input_of, strict=True)
        return [(stage, inputs[name]) for stage, inputs in pairs if name in inputs]

    def step(
        self, passing: Mapping[str, Tensor], observer: StageObserver | None = None
    ) -> list[Tensor]:
        """Runs one step.

        Args:
            passing: whole values, by name, of the inputs that are fed at every step.
            observer: called before each compute instruction with stage, index, arguments, rank.

        Returns:
            The results, joined.
        """
        transport = _Queues()
        steps = [
            StageSteps(
                self.pipeline,
                {n: self._run(n, passing, observer) for n in of_group},
                transport,
            )
            for of_group in self.pipeline.groups
        ]
        running = {number: step.run() for number, step in enumerate(steps)}
        while running:
            moved, before = transport.num_moved, len(running)
            for number in list(running):
                # Up to a receive whose value is not there.
                if next(running[number], "done") == "done":
                    del running[number]
            if transport.num_moved == moved and len(running) == before:
                raise InternalError(
                    "the stages of a pipeline wait for each other.",
                    code="E944",
                    values=[f"at {steps[n].place}" for n in running],
                    advice="report this with the plan",
                )
        return self._results(steps)

    def _run(
        self, number: int, passing: Mapping[str, Tensor], observer: StageObserver | None
    ) -> StepRun[RankValues]:
        stage = self.stages[number]
        program = stage.program
        named = {spec.name: i for i, spec in enumerate(program.inputs) if spec.kind not in _STORED}
        by_index = {named[name]: value for name, value in passing.items() if name in named}
        inputs = [stage.inputs(by_index, n) for n in range(self.pipeline.num_microbatches)]

        def observe(instruction: int, args: Sequence[Any], rank: int) -> None:
            assert observer is not None
            observer(number, instruction, args, rank)

        runner = stage.runner(None if observer is None else observe)
        return StepRun(program, inputs, runner)

    def _results(self, steps: Sequence[StageSteps[RankValues]]) -> list[Tensor]:
        queues: dict[int, Iterator[tuple[LocalRef, RankValues]]] = {}
        for step, of_group in zip(steps, self.pipeline.groups, strict=True):
            for number in of_group:
                table = self.pipeline.programs[number].table
                refs = [output.value for output in table.outputs if output.updates < 0]
                queues[number] = iter(zip(refs, step.results(number), strict=True))
        results = []
        for stage in self.pipeline.stages.result_stages:
            table = self.pipeline.programs[stage].table
            ref, parts = next(queues[stage])
            results.append(join_parts(parts, table.tensor(ref), table.mesh_shape))
        return results


class _Queues(Transport[RankValues]):
    """Shards on their way, by transfer and microbatch."""

    def __init__(self) -> None:
        self._sent: dict[tuple[Transfer, int | None], RankValues] = {}
        self.num_moved = 0

    def send(self, transfer: PlannedTransfer, microbatch: int | None, value: RankValues) -> None:
        """Does the whole transfer; the target takes its shards later."""
        plan = transfer.plan
        shards = dict(zip(plan.source_ranks, value, strict=True))
        arrived = simulate_transfer(plan, shards)
        parts = [arrived[rank] for rank in plan.target_ranks]
        self._sent[transfer.transfer, microbatch] = parts
        self.num_moved += 1

    def post(self, transfer: PlannedTransfer, microbatch: int | None) -> None:
        """Nothing to do: what is sent waits here."""

    def receive(
        self, transfer: PlannedTransfer, microbatch: int | None
    ) -> Iterator[RankValues | None]:
        """None until the value is there."""
        key = transfer.transfer, microbatch
        while key not in self._sent:
            yield None
        self.num_moved += 1
        yield self._sent.pop(key)

    def move(
        self, transfer: PlannedTransfer, microbatch: int | None, value: RankValues
    ) -> RankValues:
        """The whole transfer at once."""
        self.send(transfer, microbatch, value)
        return self._sent.pop((transfer.transfer, microbatch))

    def pack(self, scalars: Sequence[RankValues]) -> RankValues:
        """On every rank one after the other."""
        return [torch.stack(list(of_rank)) for of_rank in zip(*scalars, strict=True)]

    def unpack(self, vector: RankValues) -> Sequence[RankValues]:
        """By scalar its value on every rank."""
        return [list(of_ranks) for of_ranks in zip(*(v.unbind() for v in vector), strict=True)]
