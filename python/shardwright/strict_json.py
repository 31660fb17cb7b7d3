"""Reading untrusted JSON: bounded, no duplicate or unknown names, errors with JSON pointers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

from shardwright.errors import PlanError

T = TypeVar("T")

MAX_FILE_BYTES = 16 * 2**20
MAX_DEPTH = 32


def read_file(path: str | Path) -> object:
    """Parses a JSON file.

    Args:
        path: File of at most 16 MiB, nested at most 32 deep, UTF-8, without NaN, infinities and
            names that occur twice in one object.

    Raises:
        PlanError: E320 for a file that cannot be read or is no such JSON.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    if len(data) > MAX_FILE_BYTES:
        raise _unreadable(path, f"more than {MAX_FILE_BYTES // 2**20} MiB")
    try:
        text = data.decode("utf-8")
        if _depth(text) > MAX_DEPTH:
            raise _unreadable(path, f"nested more than {MAX_DEPTH} deep")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _unreadable(path, f"no JSON: {error}") from error


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside strings."""
    depth = deepest = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', text):
        symbol = match[0]
        if symbol in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        elif symbol in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} occurs twice in one object")
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unreadable(path: str | Path, why: str) -> PlanError:
    return PlanError(
        "a plan file cannot be read.",
        code="E320",
        values=[f"file: {path}", why],
        advice="a file that Plan.save wrote",
    )


class Reader:
    """One JSON value and where it stands in the file.

    Args:
        value: The value.
        pointer: Its JSON pointer (RFC 6901), empty for the whole document.
    """

    def __init__(self, value: object, pointer: str = "") -> None:
        self.value = value
        self.pointer = pointer

    def fail(self, what: str) -> PlanError:
        """The error for this place: E321 with pointer, value and what is expected."""
        shown = repr(self.value)
        return PlanError(
            f"a plan file does not follow the schema at {self.pointer or '/'}.",
            code="E321",
            values=[f"expected: {what}", f"got: {shown[:80]}{'...' if len(shown) > 80 else ''}"],
            advice="a file that Plan.save wrote with this version",
        )

    def fields(self, names: Iterable[str], *, optional: Iterable[str] = ()) -> dict[str, Reader]:
        """Readers of an object that has exactly these names, and any of the optional ones."""
        names = list(names)
        known = [*names, *optional]
        value = self.value
        if not isinstance(value, dict):
            raise self.fail("an object")
        for name in value:
            if name not in known:
                raise Reader(value[name], self._below(name)).fail("no such field")
        for name in names:
            if name not in value:
                raise self.fail(f"a field {name!r}")
        return {name: Reader(value[name], self._below(name)) for name in known if name in value}

    def mapping(self, names: Collection[str], parse: Callable[[Reader], T]) -> dict[str, T]:
        """An object with any of these names."""
        value = self.value
        if not isinstance(value, dict):
            raise self.fail("an object")
        for name in value:
            if name not in names:
                raise Reader(value[name], self._below(name)).fail("no such field")
        return {name: parse(Reader(v, self._below(name))) for name, v in sorted(value.items())}

    def items(
        self, parse: Callable[[Reader], T], *, least: int = 0, most: int = 2**20
    ) -> tuple[T, ...]:
        """The elements of an array of bounded length."""
        value = self.value
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise self.fail(f"an array of {least} to {most} elements")
        return tuple(parse(Reader(v, f"{self.pointer}/{i}")) for i, v in enumerate(value))

    def text(self, *, pattern: str | None = None, most: int = 4096) -> str:
        """A string, of printable characters, that matches the whole pattern."""
        value = self.value
        if not isinstance(value, str) or len(value) > most or not value.isprintable():
            raise self.fail(f"a printable string of at most {most} characters")
        if pattern is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise self.fail(f"a string like {pattern}")
        return value

    def choice(self, *values: str) -> str:
        """One of these strings."""
        if not isinstance(self.value, str) or self.value not in values:
            raise self.fail("one of " + ", ".join(values))
        return self.value

    def integer(self, least: int, most: int) -> int:
        """An integer in a closed range."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(f"an integer from {least} to {most}")
        return value

    def number(self, least: float = 0.0, most: float = 1e30) -> float:
        """A finite number in a closed range."""
        value = self.value
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not least <= value <= most:  # type: ignore[arg-type,operator]
            raise self.fail(f"a number from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    def boolean(self) -> bool:
        """A boolean."""
        if not isinstance(self.value, bool):
            raise self.fail("true or false")
        return self.value

    def _below(self, name: str) -> str:
        escaped = name.replace("~", "~0").replace("/", "~1")
        return f"{self.pointer}/{escaped}"
