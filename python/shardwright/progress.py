"""One moving line about a running search, on standard error of a terminal and on rank 0 only."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

# Called with phase, cost, lower bound and seconds of a running search.
Progress = Callable[[str, int | None, int | None, float], None]

MIN_SECONDS_BETWEEN_LINES = 0.1


class SearchLine:
    """Shows phase, incumbent, bound and gap; at most ten times per second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = -MIN_SECONDS_BETWEEN_LINES
        self._shown = False

    def __call__(
        self, phase: str, cost: int | None, lower_bound: int | None, seconds: float
    ) -> None:
        """Rewrites the line; has the signature of ``solve_ilp``'s ``on_progress``."""
        now = time.monotonic()
        if now - self._last < MIN_SECONDS_BETWEEN_LINES:
            return
        self._last = now
        width = shutil.get_terminal_size().columns - 1
        line = describe_progress(phase, cost, lower_bound, seconds)[:width]
        print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)
        self._shown = True

    def clear(self) -> None:
        """Takes the line away, so that what follows starts at the margin."""
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._shown = False


def describe_progress(
    phase: str,
    cost: int | None,
    lower_bound: int | None,
    seconds: float,
    *,
    unit: Callable[[int], str] = str,
) -> str:
    """Text of the line: ``  1.2 s  messages  cost 210  bound 200  gap 4.7619 %``."""
    text = f"{seconds:6.1f} s  {phase}  cost {'-' if cost is None else unit(cost)}"
    text += f"  bound {'-' if lower_bound is None else unit(lower_bound)}"
    if cost is not None and lower_bound is not None:
        text += f"  gap {100 * (cost - lower_bound) / max(1, abs(cost)):.4f} %"
    return text


def is_watched(stream: TextIO) -> bool:
    """Whether a moving line on the stream has a reader: a terminal, and rank 0 writing."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    # torchrun sets RANK; every rank of a host has the same terminal.
    return os.environ.get("RANK", "0") == "0"


def search_line(stream: TextIO | None = None) -> SearchLine | None:
    """A line on the stream (standard error), or None where nobody would read it."""
    stream = stream or sys.stderr
    return SearchLine(stream) if is_watched(stream) else None
