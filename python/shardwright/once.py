"""Answers about step graphs that are found once and kept for as long as the graph lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from shardwright.capture.step_graph import StepGraph

_Answer = TypeVar("_Answer")


def once_per_step(function: Callable[[StepGraph], _Answer]) -> Callable[[StepGraph], _Answer]:
    """Keeps what a pure function says of a step graph; the answer must not hold the graph."""
    answers: WeakKeyDictionary[StepGraph, _Answer] = WeakKeyDictionary()

    @functools.wraps(function)
    def known(step_graph: StepGraph) -> _Answer:
        if step_graph not in answers:
            answers[step_graph] = function(step_graph)
        return answers[step_graph]

    return known
