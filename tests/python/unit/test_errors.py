"""Errors keep their class, code and parts on the way from C++ to Python and between processes."""

import pickle

import pytest

import shardwright as sw
from shardwright import _core, errors

KINDS = sorted(
    name
    for name, value in vars(errors).items()
    if isinstance(value, type)
    and issubclass(value, sw.ShardwrightError)
    and value is not sw.ShardwrightError
)


def test_eleven_kinds() -> None:
    assert KINDS == [
        "CaptureError",
        "ClusterError",
        "CollectiveError",
        "ConfigError",
        "InfeasibleError",
        "InternalError",
        "PlanError",
        "ProblemError",
        "RankMismatchError",
        "RuleError",
        "SolverError",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_cpp_error_arrives_as_its_python_class(kind: str) -> None:
    with pytest.raises(getattr(errors, kind)) as caught:
        _core.raise_error(kind, "E999", "it failed.", ["a: 1", "b: 2"], "train.py:41", "less")
    error = caught.value
    assert type(error).__name__ == kind
    assert (error.code, error.summary, error.values) == ("E999", "it failed.", ("a: 1", "b: 2"))
    assert (
        str(error) == f"{kind} [E999]: it failed.\n  a: 1\n  b: 2\n  at: train.py:41\n  try: less"
    )


def test_empty_parts_leave_no_line() -> None:
    assert str(sw.ConfigError("bad.", code="E501")) == "ConfigError [E501]: bad."


def test_error_survives_pickling() -> None:
    error = sw.PlanError("bad.", code="E301", values=["x"], where="a.py:1", advice="b")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is sw.PlanError
    assert (copy.code, str(copy)) == (error.code, str(error))
