"""One step of the stages of one group of ranks: its list of actions, then the update in rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from shardwright import _core
from shardwright.lowering.program import Section
from shardwright.pipeline.pipeline import Pipeline
from shardwright.pipeline.stage_graphs import Transfer
from shardwright.pipeline.transfers import Message, PlannedTransfer
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

    @abstractmethod
    def pack(self, scalars: Sequence[Value]) -> Value:
        """Scalars as one vector."""

    @abstractmethod
    def unpack(self, vector: Value) -> Sequence[Value]:
        """The scalars of a vector."""


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
                yield from self._receive((planned,), microbatch)
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
                self._move((planned,), microbatch, value)
            else:
                self._leaving[planned.transfer, microbatch] = value

    def _exchange(self, when: str, turn: int) -> Iterator[None]:
        """All messages of a part of the step outside of microbatches, in one order for all."""
        for message in self._pipeline.messages:
            first = message[0].transfer
            if (first.when, first.round) != (when, turn):
                continue
            if first.source in self._runs:
                values = [self._runs[first.source].value(planned.source) for planned in message]
                value = values[0] if len(values) == 1 else self._transport.pack(values)
                if first.target in self._runs:
                    self._move(message, None, value)
                else:
                    self._transport.send(message[0], None, value)
            elif first.target in self._runs:
                self._transport.post(message[0], None)
                yield from self._receive(message, None)

    def _receive(self, message: Message, microbatch: int | None) -> Iterator[None]:
        for value in self._transport.receive(message[0], microbatch):
            if value is None:
                yield
            else:
                self._deliver(message, microbatch, value)

    def _move(self, message: Message, microbatch: int | None, value: Value) -> None:
        self._deliver(message, microbatch, self._transport.move(message[0], microbatch, value))

    def _deliver(self, message: Message, microbatch: int | None, value: Value) -> None:
        run = self._runs[message[0].transfer.target]
        values = [value] if len(message) == 1 else self._transport.unpack(value)
        for planned, part in zip(message, values, strict=True):
            run.receive(planned.target, part, microbatch)


_WHEN = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
_PARTS: dict[str, tuple[Part, ...]] = {"F": ("F",), "B": ("I", "W"), "I": ("I",), "W": ("W",)}


def _part(section: Section) -> Part:
    if section.phase == "forward":
        return "F"
    return "W" if section.round else "I"
