"""Torch's tracing errors as CaptureErrors that name the user's line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from shardwright.capture.arguments import StepArguments
from shardwright.capture.source import user_line_of
from shardwright.errors import CaptureError


@contextlib.contextmanager
def explained(arguments: StepArguments) -> Iterator[None]:
    """Turns torch's tracing errors into CaptureErrors that name the user's line."""
    try:
        yield
    except CaptureError:
        raise
    except DynamicOutputShapeException as error:
        raise CaptureError(
            f"the shape of a result depends on values ({error.func})",
            code="E102",
            where=user_line_of(error.__traceback__) or arguments.where,
            advice="keep shapes fixed: torch.where or multiplication by a mask instead of x[mask]",
        ) from error
    except Exception as error:
        if not _is_value_read(error):
            raise
        raise CaptureError(
            "the step reads a tensor's value, which is unknown when it is captured",
            code="E101",
            where=user_line_of(error.__traceback__) or arguments.where,
            advice="return the tensor and read it outside the step, or use torch.where instead of "
            "a branch",
        ) from error


def _is_value_read(error: Exception) -> bool:
    return isinstance(error, DataDependentOutputException) or (
        isinstance(error, RuntimeError) and "get value out of a tracing tensor" in str(error)
    )
