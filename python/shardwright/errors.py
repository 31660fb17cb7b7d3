"""Errors with stable codes: what failed, the values, where in the user's code, what to do.

Every code has an entry in docs/errors.md. C++ throws the same classes (csrc/base/error.h).
"""

from collections.abc import Sequence


class ShardwrightError(Exception):
    """Base of all errors of this package; catch this one to catch them all.

    ``str(error)`` is the whole text, lines after the first indented by two spaces::

        InfeasibleError [E203]: no sharding fits 8.0 GiB per device on mesh (2, 2).
          smallest peak found: 9.4 GiB
          at: train.py:41
          try: memory_limit="9.5GiB"

    Attributes:
        code: ``"E"`` and three digits.
        summary: What failed, one line.
        values: The values that matter, one line each.
        where: Place in the user's code, or the empty string.
        advice: What to do, or the empty string.
    """

    def __init__(
        self,
        summary: str,
        *,
        code: str,
        values: Sequence[str] = (),
        where: str = "",
        advice: str = "",
    ) -> None:
        self.code = code
        self.summary = summary
        self.values = tuple(values)
        self.where = where
        self.advice = advice
        lines = [f"{type(self).__name__} [{code}]: {summary}"]
        lines += [f"  {value}" for value in self.values]
        if where:
            lines.append(f"  at: {where}")
        if advice:
            lines.append(f"  try: {advice}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuilds from the parts, so that errors cross process borders unchanged."""
        return (
            _rebuild,
            (type(self), self.summary, self.code, self.values, self.where, self.advice),
        )


def _rebuild(
    kind: type[ShardwrightError],
    summary: str,
    code: str,
    values: tuple[str, ...],
    where: str,
    advice: str,
) -> ShardwrightError:
    return kind(summary, code=code, values=values, where=where, advice=advice)


class CaptureError(ShardwrightError):
    """The training step cannot be captured as one graph."""


class RuleError(ShardwrightError):
    """An op has no sharding rule, or a registered rule is wrong."""


class InfeasibleError(ShardwrightError):
    """No plan satisfies the constraints, the memory limit above all."""


class PlanError(ShardwrightError):
    """A plan or plan file is malformed, foreign or fails its certificate."""


class ClusterError(ShardwrightError):
    """A cluster or mesh is unknown, malformed or larger than the world."""


class ProblemError(ShardwrightError):
    """A problem given to a solver is malformed."""


class SolverError(ShardwrightError):
    """A solver failed or gave an answer that its check rejects."""


class RankMismatchError(ShardwrightError):
    """The ranks disagree on model, plan, program or versions."""


class CollectiveError(ShardwrightError):
    """A collective failed; says rank, group, op and source line."""


class ConfigError(ShardwrightError):
    """An argument or the environment cannot work."""


class InternalError(ShardwrightError):
    """A mistake of this package; please report it."""
