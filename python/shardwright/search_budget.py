"""The time that all searches for one plan have together."""

from __future__ import annotations

import time


class SearchBudget:
    """Seconds that run out from the moment they are given.

    Attributes:
        interrupted: whether Ctrl-C ended a search that had found something: that is made a plan,
            and nothing else is searched.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.interrupted = False

    @property
    def left_s(self) -> float:
        """What is left, 0 or more."""
        return max(0.0, self._end - time.monotonic())

    @property
    def is_spent(self) -> bool:
        """Whether no other search may begin."""
        return self.interrupted or self.left_s == 0
