"""A parallelized step in stages: every rank holds and runs its own stage."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardwright.capture import StepArguments, StepGraph
from shardwright.errors import CollectiveError, ConfigError
from shardwright.lowering.check import check_program
from shardwright.pipeline.pipeline import Pipeline, lower_pipeline
from shardwright.pipeline.plan import PipelinePlan
from shardwright.pipeline.stage_graphs import Transfer
from shardwright.pipeline.stage_steps import StageSteps, Transport
from shardwright.pipeline.transfers import PlannedTransfer
from shardwright.runtime import agreement, collectives
from shardwright.runtime.executor import Executor
from shardwright.runtime.ownership import owners, replace_tensors
from shardwright.runtime.section_loop import StepRun
from shardwright.runtime.session import Lowered, Part, Prepared, Runnable, Session
from shardwright.runtime.stage_transfer import PendingTransfer, StageTransfer

# Messages of one transfer, each of a microbatch, that are on their way at once.
_MAX_PENDING_SENDS = 2

PipelinePlanner = Callable[[StepGraph, int, torch.device], Pipeline]


@dataclass
class PipelineSession(Session):
    """State of one decorated step in stages.

    Attributes:
        plan_pipeline: cuts and plans, on rank 0: `(graph, world_size, device)`.
        pipeline: of the newest signature.
    """

    plan_pipeline: PipelinePlanner | None = None
    pipeline: Pipeline | None = None
    _transfer_group: Any = None

    @property
    def own_stages(self) -> tuple[int, ...]:
        """Stages of this rank, in order."""
        assert self.world is not None
        assert self.pipeline is not None
        return self.pipeline.stages_of(self.world.rank)

    @property
    def _mesh_rank(self) -> int:
        assert self.world is not None
        assert self.pipeline is not None
        return self.world.rank - self.pipeline.first_ranks[self.own_stages[0]]

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Prepared, dict[str, float]]:
        if self.pipeline is not None:
            raise ConfigError(
                "a step in stages was called with other shapes, dtypes, mode or guarded "
                "hyper-parameters than at first.",
                code="E529",
                advice="keep them, or num_stages=1, which plans anew for each",
            )
        return super()._prepare(args, kwargs)

    def _lowered(self, graph: StepGraph) -> Lowered:
        assert self.world is not None
        pipeline = self._agreed_pipeline(graph)
        self.pipeline = pipeline
        text = json.dumps(pipeline.plan.to_dict(), sort_keys=True)
        facts = {
            "plan": agreement.digest(text),
            "stages": str([plan.mesh_shape for plan in pipeline.plans]),
            "pipeline": pipeline.fingerprint(),
        }
        parts = tuple(
            Part(pipeline.stages.graphs[stage], pipeline.plans[stage], pipeline.programs[stage])
            for stage in self.own_stages
        )
        firsts = [of_group[0] for of_group in pipeline.groups]
        return Lowered(
            parts,
            facts,
            tuple(pipeline.plans[stage].mesh_shape for stage in firsts),
            tuple(pipeline.first_ranks[stage] for stage in firsts),
            firsts.index(self.own_stages[0]),
        )

    def _agreed_pipeline(self, graph: StepGraph) -> Pipeline:
        """Rank 0's plan, lowered, or its error on every rank."""
        world = self.world
        assert world is not None
        assert self._device is not None
        answer: tuple[str, Any] = ("", None)
        pipeline: Pipeline | None = None
        if world.rank == 0:
            try:
                assert self.plan_pipeline is not None
                pipeline = self.plan_pipeline(graph, world.size, self._device)
                if self.check:
                    for program in pipeline.programs:
                        self.check_report = check_program(program)
                answer = ("plan", json.dumps(pipeline.plan.to_dict()))
            except Exception as error:
                answer = ("error", agreement.portable(error))
        kind, value = agreement.from_first(answer, world)
        if kind == "error":
            raise value
        if pipeline is not None:
            return pipeline
        return lower_pipeline(graph, PipelinePlan.from_dict(json.loads(value)))

    def _executor(self, lowered: Lowered) -> Runnable:
        assert self.world is not None
        assert self.pipeline is not None
        assert self._groups is not None
        assert self._device is not None
        if self._transfer_group is None and self.world.has_group:
            ranks = list(range(self.world.size))
            self._transfer_group = dist.new_group(ranks, timeout=self.timeout)
        executors = {
            stage: Executor(
                part.program, self._mesh_rank, self._groups.names, self._device, self._on_failure
            )
            for stage, part in zip(self.own_stages, lowered.parts, strict=True)
        }
        return PipelineExecutor(
            self.pipeline, executors, self.world.rank, self._device, self._transfer_group,
            self._on_failure,
        )  # fmt: skip

    def _adopted(self, arguments: StepArguments) -> None:
        """Lets go of what other stages hold: a meta tensor stands in its place."""
        assert self.state is not None
        stored = {**arguments.parameters, **arguments.buffers}
        foreign = {name: t for name, t in stored.items() if name not in self.state.locals}
        labels = {id(tensor): name for name, tensor in foreign.items()}
        places: dict[int, tuple[nn.Module, list[str]]] = {}
        for module, name, _ in owners(arguments.modules.values(), labels):
            places.setdefault(id(module), (module, []))[1].append(name)
        for module, names in places.values():
            module.register_state_dict_post_hook(_without(names))  # type: ignore[no-untyped-call]
        replacement = {id(tensor): _meta_of(tensor) for tensor in foreign.values()}
        replace_tensors(arguments.modules.values(), arguments.optimizers.values(), replacement)


def _meta_of(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _without(names: Sequence[str]) -> Any:
    def hook(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in names:
            state_dict.pop(prefix + name, None)

    return hook


class PipelineExecutor:
    """Runs the stages of this rank, step after step.

    Args:
        pipeline: all stages.
        executors: by stage of this rank that of its program.
        rank: of this process.
        device: where it runs.
        group: all ranks; None for one process alone.
        on_failure: makes the error of a failed collective or transfer.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        executors: Mapping[int, Executor],
        rank: int,
        device: torch.device,
        group: Any,
        on_failure: Any,
    ) -> None:
        self._pipeline = pipeline
        self._executors = dict(executors)
        self._device = device
        self._group = group
        self._on_failure = on_failure
        self._num_steps = 0
        self._transfers = {
            planned.transfer: StageTransfer(
                planned.plan, rank, device, group=group, index=index,
                stages=(planned.transfer.source, planned.transfer.target),
            )
            for index, (planned, *_) in enumerate(pipeline.messages)
            if planned.transfer.source in executors or planned.transfer.target in executors
        }  # fmt: skip

    def step(self, *inputs: Sequence[Mapping[int, Tensor]]) -> list[Tensor]:
        """Runs one step.

        Args:
            inputs: of every stage of this rank, per microbatch the local value of the graph inputs
                that no stage sends.

        Returns:
            The results of the whole step, on every rank.
        """
        collectives.begin_step(self._num_steps)
        runs = {
            stage: StepRun(executor.program, [executor.values(g) for g in given], executor.runner)
            for (stage, executor), given in zip(self._executors.items(), inputs, strict=True)
        }
        transport = _Messages(self._transfers)
        steps = StageSteps(self._pipeline, runs, transport)
        try:
            with torch.no_grad():
                for _ in steps.run():
                    pass
                transport.finish()
                results = self._everywhere({stage: steps.results(stage) for stage in runs})
        except RuntimeError as error:
            failure = collectives.take_failure()
            if failure is None:
                raise
            raise self._named(failure, steps.stage, steps.place, error) from error
        self._num_steps += 1
        return results

    def _named(
        self, failure: dict[str, Any], stage: int, place: str, error: BaseException
    ) -> BaseException:
        """The verdict, with stage and microbatch."""
        judged: BaseException = self._on_failure(failure, None, error)
        if not isinstance(judged, CollectiveError):
            return judged
        return CollectiveError(
            judged.summary,
            code=judged.code,
            values=[f"stage {stage}, at {place}", *judged.values],
            where=judged.where,
            advice=judged.advice,
        )

    def _everywhere(self, own: Mapping[int, Sequence[Tensor]]) -> list[Tensor]:
        """Results of all stages; each comes from the first rank of its stage."""
        mine = {stage: iter(results) for stage, results in own.items()}
        whole = self._pipeline.stages.whole
        specs = zip(whole.outputs, whole.output_nodes, strict=True)
        nodes = [node for spec, node in specs if spec.updates is None]
        results = []
        for stage, node in zip(self._pipeline.stages.result_stages, nodes, strict=True):
            if stage in mine:
                value = next(mine[stage]).contiguous()
            else:
                val = node.meta["val"]
                value = torch.empty(val.shape, dtype=val.dtype, device=self._device)
            if self._group is not None:
                self._broadcast(value, self._pipeline.first_ranks[stage])
            results.append(value)
        return results

    def _broadcast(self, value: Tensor, source: int) -> None:
        try:
            dist.broadcast(value, source, group=self._group)
        except RuntimeError as error:
            failure = {
                "step": self._num_steps, "ordinal": -1, "op": "returning the results", "group": "",
                "bytes": value.numel() * value.element_size(), "reason": str(error),
            }  # fmt: skip
            stage = min(self._executors)
            raise self._named(failure, stage, "the end of the step", error) from error


class _Messages(Transport[Tensor]):
    """Transfers of one step on process groups."""

    def __init__(self, transfers: Mapping[Any, StageTransfer]) -> None:
        self._transfers = transfers
        self._sends: dict[Transfer, deque[PendingTransfer]] = {}
        self._posted: dict[tuple[Transfer, int | None], PendingTransfer] = {}

    def send(self, transfer: PlannedTransfer, microbatch: int | None, value: Tensor) -> None:
        """Posts it and waits for the last but one of the same transfer, so that no more are held.

        The order of the schedule lets every send wait for its receiver.
        """
        pending = self._sends.setdefault(transfer.transfer, deque())
        if len(pending) == _MAX_PENDING_SENDS:
            pending.popleft().wait()
        pending.append(self._transfers[transfer.transfer].start(value, microbatch or 0))

    def post(self, transfer: PlannedTransfer, microbatch: int | None) -> None:
        """Posts the receives; the messages go on while this rank computes."""
        started = self._transfers[transfer.transfer].start(None, microbatch or 0)
        self._posted[transfer.transfer, microbatch] = started

    def receive(self, transfer: PlannedTransfer, microbatch: int | None) -> Iterator[Tensor | None]:
        """Waits for what was posted."""
        value = self._posted.pop((transfer.transfer, microbatch)).wait()
        assert value is not None
        yield value

    def move(self, transfer: PlannedTransfer, microbatch: int | None, value: Tensor) -> Tensor:
        """Within the ranks of both stages, at once."""
        moved = self._transfers[transfer.transfer].start(value, microbatch or 0).wait()
        assert moved is not None
        return moved

    def pack(self, scalars: Sequence[Tensor]) -> Tensor:
        """One after the other."""
        return torch.stack(list(scalars))

    def unpack(self, vector: Tensor) -> Sequence[Tensor]:
        """Views of it."""
        return vector.unbind()

    def finish(self) -> None:
        """Waits until all that was sent has arrived."""
        for pending in self._sends.values():
            for sent in pending:
                sent.wait()
        self._sends.clear()
