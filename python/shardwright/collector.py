"""Python's collector of cyclic garbage, out of the way while graphs are written."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collections within; also a decorator.

    Passes over graphs make some hundred thousand objects that stay. The collector goes through all
    of them, and through all that the process holds besides, again and again: an eighth of the time
    of planning a large model.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
