"""One step of the stages of one group of ranks: its list of actions, then the update in rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, Literal, TypeVar

from shardwright import _core
from shardwright.lowering.program import Section
from shardwright.pipeline.pipeline import Pipeline, PlannedTransfer
from shardwright.pipeline.stage_graphs import Transfer
from shardwright.runtime.section_loop import StepRun

Value = TypeVar("Value")
# Parts of a microbatch in one stage; a backward "B" is "I", then "W".
Part = Literal["F", "I", "W"]


class Transport(ABC, Generic[Value]):
    """Moves values between stages."""

    @abstractmethod
    def send(self, transfer: PlannedTransfer, microbatch: int | None, value: Value) -> None:
        """Sends a stage's value on its way."""

    @abstractmethod
    def post(self, transfer: PlannedTransfer, microbatch: int | None) -> None:
        """Makes ready for a value that another stage sends."""

    @abstractmethod
    def receive(self, transfer: PlannedTransfer, microbatch: int | None) -> Iterator[Value | None]:
        """The value that was made ready for; None as often as it is not there yet."""

    @abstractmethod
    def move(self, transfer: PlannedTransfer, microbatch: int | None, value: Value) -> Value:
        """The value as another stage of the same ranks has it."""


class StageSteps(Generic[Value]):
    """One step of all stages of one group of ranks.

    A receive in the list of actions is posted; the computation that needs its values waits.

    Args:
        pipeline: all stages.
        runs: by stage the step of its program.
        transport: between stages.
    """

    def __init__(
        self, pipeline: Pipeline, runs: Mapping[int, StepRun[Value]], transport: Transport[Value]
    ) -> None:
        self._pipeline = pipeline
        self._runs = dict(runs)
        self._transport = transport
        self._group = pipeline.schedule.rank_of_stage[min(runs)]
        self._place = "the beginning"
        self._stage = min(runs)
        # What was made for other stages and is not sent yet.
        self._leaving: dict[tuple[Transfer, int], Value] = {}
        # What computations wait for: (stage, forward or backward, microbatch) -> transfers.
        self._posted: dict[tuple[int, str, int], list[PlannedTransfer]] = {}
        self._sections: dict[tuple[int, Part], list[int]] = {}
        self._rounds: dict[tuple[int, int], list[int]] = {}
        for stage in self._runs:
            for number, section in enumerate(pipeline.programs[stage].sections):
                if section.phase == "update":
                    self._rounds.setdefault((stage, section.round), []).append(number)
                else:
                    part = _part(section)
                    self._sections.setdefault((stage, part), []).append(number)

    def run(self) -> Iterator[None]:
        """Runs the step; yields wherever another stage may have to go on first."""
        self._place = "the start of the step"
        yield from self._exchange("start", 0)
        for action in self._pipeline.actions[self._group]:
            self._place = f"{action} (microbatch {action.microbatch})"
            self._stage = action.stage
            yield from self._act(action)
        for run in self._runs.values():
            run.finish_microbatches()
        for turn in range(self._pipeline.stages.num_rounds):
            self._place = f"round {turn} of the update"
            for stage, run in self._runs.items():
                self._stage = stage
                for number in self._rounds.get((stage, turn), ()):
                    run.run(number, None)
            yield from self._exchange("update", turn)

    @property
    def place(self) -> str:
        """What it does now: an action such as "1F3", or a part of the step."""
        return self._place

    @property
    def stage(self) -> int:
        """Stage that it does that for."""
        return self._stage

    def results(self, stage: int) -> list[Value]:
        """Results of a stage's graph; those of the marks of sent values come last."""
        return self._runs[stage].results()

    def _act(self, action: _core.Action) -> Iterator[None]:
        kind, stage, microbatch = action.kind, action.stage, action.microbatch
        when = _WHEN[kind[-1]]
        if action.is_transfer:
            peer = action.peer
            if peer is None:
                peer = stage + (1 if kind in ("SEND_F", "RECV_B") else -1)
            if action.is_send:
                for planned in self._pipeline.transfers_of(when, stage, peer):
                    value = self._leaving.pop((planned.transfer, microbatch))
                    self._transport.send(planned, microbatch, value)
            else:
                posted = self._pipeline.transfers_of(when, peer, stage)
                self._posted.setdefault((stage, when, microbatch), []).extend(posted)
                for planned in posted:
                    self._transport.post(planned, microbatch)
            return
        if kind != "W":
            for planned in self._posted.pop((stage, when, microbatch), ()):
                yield from self._receive(planned, microbatch)
        for part in _PARTS[kind]:
            self._compute(stage, part, microbatch)

    def _compute(self, stage: int, part: Part, microbatch: int) -> None:
        run = self._runs[stage]
        for number in self._sections.get((stage, part), ()):
            run.run(number, microbatch)
        if part == "W":
            run.leave(microbatch)
            return
        key = (_WHEN[part], stage)
        leaving = [
            t for t in self._pipeline.transfers if (t.transfer.when, t.transfer.source) == key
        ]
        values = {ref: run.hand_over(ref, microbatch) for ref in {t.source for t in leaving}}
        for planned in leaving:
            value = values[planned.source]
            if planned.transfer.target in self._runs:
                self._move(planned, microbatch, value)
            else:
                self._leaving[planned.transfer, microbatch] = value

    def _exchange(self, when: str, turn: int) -> Iterator[None]:
        """All transfers of a part of the step outside of microbatches, in one order for all."""
        num_stages = len(self._pipeline.programs)
        for source in range(num_stages):
            for target in range(num_stages):
                for planned in self._pipeline.transfers_of(when, source, target, turn):
                    if source in self._runs:
                        value = self._runs[source].value(planned.source)
                        if target in self._runs:
                            self._move(planned, None, value)
                        else:
                            self._transport.send(planned, None, value)
                    elif target in self._runs:
                        self._transport.post(planned, None)
                        yield from self._receive(planned, None)

    def _receive(self, planned: PlannedTransfer, microbatch: int | None) -> Iterator[None]:
        for value in self._transport.receive(planned, microbatch):
            if value is None:
                yield
            else:
                self._runs[planned.transfer.target].receive(planned.target, value, microbatch)

    def _move(self, planned: PlannedTransfer, microbatch: int | None, value: Value) -> None:
        moved = self._transport.move(planned, microbatch, value)
        self._runs[planned.transfer.target].receive(planned.target, moved, microbatch)


_WHEN = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
_PARTS: dict[str, tuple[Part, ...]] = {"F": ("F",), "B": ("I", "W"), "I": ("I",), "W": ("W",)}


def _part(section: Section) -> Part:
    if section.phase == "forward":
        return "F"
    return "W" if section.round else "I"
