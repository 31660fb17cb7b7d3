"""A tensor as a small picture: how its first two dims are cut, and what the first device holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwright.report.svg import element, picture

_SIDE = 30.0
_THIN = 9.0
# Size of an atom that is not sharded, which the printed spec does not tell: as many pieces.
_UNKNOWN_ATOM = 3
_MAX_LINES = 16
# More lines than this are drawn thinner.
_DENSE = 4


@dataclass(frozen=True)
class Cut:
    """One atom of a dim: the mesh axes that shard it, outer to inner; none for a whole atom."""

    axes: tuple[int, ...]


@dataclass(frozen=True)
class ParsedSpec:
    """A printed spec taken apart.

    Attributes:
        dims: Per tensor dim its atoms, outer to inner.
        partial: Mesh axes with a pending reduction.
    """

    dims: tuple[tuple[Cut, ...], ...]
    partial: tuple[int, ...]


def parse_printed(text: str) -> ParsedSpec:
    """`"{R,S1} R P0"`: dim 0 has two atoms, the inner one cut by axis 1; pending sum on axis 0."""
    dims: list[tuple[Cut, ...]] = []
    partial: tuple[int, ...] = ()
    for symbol in text.split():
        if symbol.startswith("P"):
            partial += _axes(symbol[1:].partition("(")[0])
        else:
            atoms = symbol.strip("{}").split(",")
            dims.append(tuple(Cut(_axes(atom[1:])) for atom in atoms))
    return ParsedSpec(tuple(dims), partial)


def _axes(digits: str) -> tuple[int, ...]:
    return tuple(int(digit) for digit in digits if digit.isdigit())


def glyph(shape: Sequence[int], text: str, mesh_shape: Sequence[int], *, title: str) -> str:
    """The picture of one tensor.

    Args:
        shape: Global shape; only the first two dims are drawn.
        text: The printed spec.
        mesh_shape: Sizes of the mesh axes.
        title: Said to readers that cannot see it.

    Returns:
        An svg element: filled where device 0 holds data, hatched when that is a partial sum; lines
        are cuts in the colors of their mesh axes.
    """
    spec = parse_printed(text)
    dims = [*spec.dims[:2], *[(Cut(()),)] * (2 - len(spec.dims[:2]))]
    if len(shape) < 2:  # a thin bar, cut from left to right
        dims.reverse()
    height = _SIDE if len(shape) >= 2 else _THIN
    width = _SIDE if len(shape) >= 1 else _THIN
    rows = _pieces(dims[0], mesh_shape)
    columns = _pieces(dims[1], mesh_shape)
    fill = "piece partial" if spec.partial else "piece"
    drawn = [element("rect", x=1.0, y=1.0, width=width, height=height, class_="tensor")]
    for top, bottom in rows:
        for left, right in columns:
            drawn.append(
                element(
                    "rect", x=1 + left * width, y=1 + top * height, width=(right - left) * width,
                    height=(bottom - top) * height, class_=fill,
                )
            )  # fmt: skip
    rows_at, columns_at = _lines(dims[0], mesh_shape), _lines(dims[1], mesh_shape)
    thin = 0.7 if max(len(rows_at), len(columns_at)) > _DENSE else None
    for at, axis in rows_at:
        y = 1 + at * height
        drawn.append(
            element(
                "line", x1=1.0, x2=1 + width, y1=y, y2=y, class_=f"cut a{axis}", stroke_width=thin
            )
        )
    for at, axis in columns_at:
        x = 1 + at * width
        drawn.append(
            element(
                "line", x1=x, x2=x, y1=1.0, y2=1 + height, class_=f"cut a{axis}", stroke_width=thin
            )
        )
    return picture("".join(drawn), width + 2, height + 2, title)


def _pieces(dim: Sequence[Cut], mesh_shape: Sequence[int]) -> list[tuple[float, float]]:
    """Intervals of the unit length that the first device holds; neighbours are joined."""
    intervals = [(0.0, 1.0)]
    for index, cut in enumerate(dim):
        ways = _ways(cut, mesh_shape)
        if ways > 1:
            intervals = [(a, a + (b - a) / ways) for a, b in intervals]
        elif any(_ways(inner, mesh_shape) > 1 for inner in dim[index + 1 :]):
            intervals = [
                (a + (b - a) * k / _UNKNOWN_ATOM, a + (b - a) * (k + 1) / _UNKNOWN_ATOM)
                for a, b in intervals
                for k in range(_UNKNOWN_ATOM)
            ]
    return intervals


def _ways(cut: Cut, mesh_shape: Sequence[int]) -> int:
    ways = 1
    for axis in cut.axes:
        ways *= mesh_shape[axis] if axis < len(mesh_shape) else 1
    return ways


def _lines(dim: Sequence[Cut], mesh_shape: Sequence[int]) -> list[tuple[float, int]]:
    """Where the dim is cut, as shares of its length, and the axis that cuts there."""
    segments = [(0.0, 1.0)]
    lines: list[tuple[float, int]] = []
    for index, cut in enumerate(dim):
        if not cut.axes and any(inner.axes for inner in dim[index + 1 :]):
            segments = [piece for s in segments for piece in _split(s, _UNKNOWN_ATOM)]
        for axis in cut.axes:
            ways = mesh_shape[axis] if axis < len(mesh_shape) else 1
            split = [_split(segment, ways) for segment in segments]
            if len(lines) + len(segments) * (ways - 1) > _MAX_LINES:
                return lines
            lines += [(left[1], axis) for pieces in split for left, _ in pairwise(pieces)]
            segments = [piece for pieces in split for piece in pieces]
    return lines


def _split(segment: tuple[float, float], ways: int) -> list[tuple[float, float]]:
    a, b = segment
    return [(a + (b - a) * k / ways, a + (b - a) * (k + 1) / ways) for k in range(ways)]
