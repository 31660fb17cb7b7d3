"""The time that all searches for one plan have together."""

from __future__ import annotations

import math
import time

from shardwright.errors import ConfigError


def search_seconds(limit: object) -> float:
    """A time limit in seconds; ConfigError E520 for what is no positive number."""
    if isinstance(limit, (int, float)) and not isinstance(limit, bool) and 0 < limit < math.inf:
        return float(limit)
    raise ConfigError(
        "time_limit_s must be a positive number of seconds.",
        code="E520",
        values=[f"time_limit_s: {limit!r}"],
        advice="time_limit_s=60",
    )


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
