"""Where in the user's code something happens: frames outside torch and outside this package."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, TracebackType

import torch

_OWN_ROOTS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
)
# The model zoo is user code that happens to be shipped with the package.
_USER_ROOTS = (os.path.join(_OWN_ROOTS[1], "zoo") + os.sep,)
_is_user_code: dict[CodeType, bool] = {}


def is_user_frame(frame: FrameType) -> bool:
    """Whether the frame belongs neither to torch, nor to this package, nor to generated code."""
    code = frame.f_code
    known = _is_user_code.get(code)
    if known is None:
        path = code.co_filename
        known = not path.startswith(("<frozen", "<string>", *_OWN_ROOTS)) and (
            "importlib" not in path and os.path.basename(path) != "contextlib.py"
        )
        known = known or path.startswith(_USER_ROOTS)
        _is_user_code[code] = known
    return known


def place(filename: str, line: int) -> str:
    """`file.py:line`, without folders."""
    return f"{os.path.basename(filename)}:{line}"


def current_user_line() -> str:
    """`file.py:line` of the innermost user frame of the running call, or the empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_frame(frame):
            return place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def user_line_of(traceback: TracebackType | None) -> str:
    """`file.py:line` of the innermost user frame of a traceback, or the empty string."""
    label = ""
    while traceback is not None:
        if is_user_frame(traceback.tb_frame):
            label = place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return label
