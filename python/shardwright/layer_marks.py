"""sw.mark_layer: the user's word on where a layer begins."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

# Called by marks while a step is captured; None at any other time.
ON_MARK: ContextVar[Callable[[], None] | None] = ContextVar("on_mark", default=None)


def mark_layer() -> None:
    """Begins a layer with the next operation of forward.

    Called in a model's `forward`, between the operations of two layers. Layers are what pipeline
    stages are made of; with marks, no layer begins anywhere else unless a number of layers is asked
    for. Only capture takes note: in eager steps and in compiled ones it does nothing.
    """
    on_mark = ON_MARK.get()
    if on_mark is not None:
        on_mark()
