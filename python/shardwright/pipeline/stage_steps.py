"""One step of the stages of one group of ranks: its list of actions, then the update in rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, Literal, TypeVar

from shardwright import _core
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
    def receive(self, transfer: PlannedTransfer, microbatch: int | None) -> Iterator[Value | None]:
        """The value that another stage sent; None as often as it is not there yet."""


class StageSteps(Generic[Value]):
    """One step of one stage.

    Args:
        pipeline: all stages.
        stage: which.
        run: the step of its program.
        transport: to and from other stages.
    """

    def __init__(
        self, pipeline: Pipeline, stage: int, run: StepRun[Value], transport: Transport[Value]
    ) -> None:
        self._pipeline = pipeline
        self._stage = stage
        self._step = run
        self._transport = transport
        self._num_stages = len(pipeline.programs)
        self._place = "the beginning"
        self._gradients = [
            t for t in pipeline.transfers
            if (t.transfer.when, t.transfer.source) == ("backward", stage)
        ]  # fmt: skip
        # Gradients for other stages of microbatches whose backward is done.
        self._leaving: dict[tuple[Transfer, int | None], Value] = {}
        sections = list(enumerate(pipeline.programs[stage].sections))
        self._sections: dict[Part, list[int]] = {
            "F": [n for n, s in sections if s.phase == "forward"],
            "I": [n for n, s in sections if s.phase == "backward" and s.round == 0],
            "W": [n for n, s in sections if s.phase == "backward" and s.round == 1],
        }
        self._rounds = {
            turn: [n for n, s in sections if s.phase == "update" and s.round == turn]
            for turn in range(pipeline.stages.num_rounds)
        }

    def run(self) -> Iterator[None]:
        """Runs the step; yields wherever another stage may have to go on first."""
        self._place = "the start of the step"
        yield from self._exchange("start", 0)
        for action in self._pipeline.actions[self._stage]:
            self._place = f"{action} (microbatch {action.microbatch})"
            yield from self._act(action)
        self._step.finish_microbatches()
        for turn in range(self._pipeline.stages.num_rounds):
            self._place = f"round {turn} of the update"
            for number in self._rounds[turn]:
                self._step.run(number, None)
            yield from self._exchange("update", turn)

    @property
    def place(self) -> str:
        """What it does now: an action such as "1F3", or a part of the step."""
        return self._place

    def results(self) -> list[Value]:
        """Results of the stage's graph; those of the marks of sent values come last."""
        return self._step.results()

    def _act(self, action: _core.Action) -> Iterator[None]:
        kind, microbatch = action.kind, action.microbatch
        before, after = self._stage - 1, self._stage + 1
        if kind == "F":
            self._compute("F", microbatch)
        elif kind == "B":
            self._compute("I", microbatch)
            self._compute("W", microbatch)
        elif kind == "I":
            self._compute("I", microbatch)
        elif kind == "W":
            self._compute("W", microbatch)
        elif kind == "SEND_F":
            self._send("forward", after if action.peer is None else action.peer, microbatch)
        elif kind == "SEND_B":
            self._send("backward", before if action.peer is None else action.peer, microbatch)
        elif kind == "RECV_F":
            peer = before if action.peer is None else action.peer
            yield from self._receive("forward", peer, microbatch)
        else:
            peer = after if action.peer is None else action.peer
            yield from self._receive("backward", peer, microbatch)

    def _compute(self, part: Part, microbatch: int) -> None:
        for number in self._sections[part]:
            self._step.run(number, microbatch)
        if part == "I":
            for planned in self._gradients:
                value = self._step.value(planned.source, microbatch)
                self._leaving[planned.transfer, microbatch] = value
        elif part == "W":
            self._step.leave(microbatch)

    def _exchange(self, when: str, turn: int) -> Iterator[None]:
        """All transfers of a part of the step outside of microbatches, in one order for all."""
        for source in range(self._num_stages):
            for target in range(self._num_stages):
                if self._stage == source:
                    self._send(when, target, None, turn)
                elif self._stage == target:
                    yield from self._receive(when, source, None, turn)

    def _send(self, when: str, target: int, microbatch: int | None, turn: int = 0) -> None:
        for planned in self._pipeline.transfers_of(when, self._stage, target, turn):
            left = self._leaving.pop((planned.transfer, microbatch), None)
            value = self._step.value(planned.source, microbatch) if left is None else left
            self._transport.send(planned, microbatch, value)

    def _receive(
        self, when: str, source: int, microbatch: int | None, turn: int = 0
    ) -> Iterator[None]:
        for planned in self._pipeline.transfers_of(when, source, self._stage, turn):
            for value in self._transport.receive(planned, microbatch):
                if value is None:
                    yield
                else:
                    self._step.receive(planned.target, value, microbatch)
