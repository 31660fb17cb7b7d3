"""The mesh as a picture: devices as cells, hosts as frames around them, axes as arrows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from shardwright.report.svg import element, label, picture
from shardwright.report.units import count_text, shape_text

_CELL = 26.0
_GAP = 7.0
_LEFT = 26.0
_TOP = 22.0
_MAX_COLUMNS = 16
_MAX_ROWS = 16


def mesh_picture(mesh_shape: Sequence[int], ranks: Sequence[int], devices_per_host: int) -> str:
    """Draws a mesh; of large ones the first 16 rows and columns.

    Args:
        mesh_shape: Sizes of the mesh axes. More than two axes are drawn with all but the last as
            rows; one axis is wrapped after each host or 16 devices.
        ranks: Global ranks in mesh order.
        devices_per_host: Ranks in a row that share a host.

    Returns:
        The svg element.
    """
    wrapped = len(mesh_shape) == 1 and mesh_shape[0] > _MAX_COLUMNS
    columns = min(devices_per_host, _MAX_COLUMNS) if wrapped else mesh_shape[-1]
    rows = -(-prod(mesh_shape) // columns)
    shown_rows, shown_columns = min(rows, _MAX_ROWS), min(columns, _MAX_COLUMNS)
    cells = [
        (row, column, ranks[row * columns + column])
        for row in range(shown_rows)
        for column in range(shown_columns)
        if row * columns + column < len(ranks)
    ]
    drawn = [_host_frames(cells, devices_per_host), *(_cell(*cell) for cell in cells)]
    width = _LEFT + shown_columns * (_CELL + _GAP) + _GAP
    height = _TOP + shown_rows * (_CELL + _GAP) + _GAP
    last = len(mesh_shape) - 1
    drawn.append(_across(f"axis {last}: {mesh_shape[last]}", last, width))
    if last > 0:
        others = ", ".join(f"axis {a}: {mesh_shape[a]}" for a in range(last))
        drawn.append(_down(others, last - 1, height))
    if shown_rows < rows or shown_columns < columns:
        drawn.append(label(f"... {count_text(len(ranks), 'device')} in all", _LEFT, height + 12,
                           css="small"))  # fmt: skip
        height += 16
    hosts = len({rank // devices_per_host for rank in ranks})
    title = (
        f"mesh {shape_text(mesh_shape)}: {count_text(len(ranks), 'device')} on "
        f"{count_text(hosts, 'host')}"
    )
    return picture("".join(drawn), max(width, 130), height, title)


def _place(row: int, column: int) -> tuple[float, float]:
    return _LEFT + _GAP + column * (_CELL + _GAP), _TOP + _GAP + row * (_CELL + _GAP)


def _cell(row: int, column: int, rank: int) -> str:
    x, y = _place(row, column)
    return element("rect", x=x, y=y, width=_CELL, height=_CELL, rx=4, class_="device") + label(
        str(rank), x + _CELL / 2, y + _CELL / 2 + 3.7, anchor="middle", css="rank"
    )


def _host_frames(cells: Sequence[tuple[int, int, int]], devices_per_host: int) -> str:
    """One frame per host and block of cells; a host on parts of several rows gets several."""
    spans: dict[tuple[int, int], list[int]] = {}
    for row, column, rank in cells:
        spans.setdefault((rank // devices_per_host, row), []).append(column)
    frames: list[list[int]] = []  # host, first row, last row, first column, last column
    for (host, row), found in spans.items():
        first, last = min(found), max(found)
        above = frames[-1] if frames else None
        if above and above[0] == host and above[2] == row - 1 and above[3:] == [first, last]:
            above[2] = row
        else:
            frames.append([host, row, row, first, last])
    drawn = []
    for host, top, bottom, left, right in frames:
        x, y = _place(top, left)
        x2, y2 = _place(bottom, right)
        drawn.append(
            element(
                "rect", f"<title>host {host}</title>", x=x - 3, y=y - 3, width=x2 - x + _CELL + 6,
                height=y2 - y + _CELL + 6, rx=6, class_="host",
            )
        )  # fmt: skip
    return "".join(drawn)


def _across(text: str, axis: int, width: float) -> str:
    left, y = _LEFT + _GAP, 14.0
    start = left + 7.0 * len(text)
    arrow = ""
    if width - _GAP - start > 14:
        end = width - _GAP
        arrow = element(
            "path", d=f"M{start:.0f} {y - 4:.0f}H{end:.0f}m-5 -3l5 3l-5 3",
            class_=f"arrow a{axis}",
        )  # fmt: skip
    return label(text, left, y, css=f"axis t{axis}") + arrow


def _down(text: str, axis: int, height: float) -> str:
    top, x = _TOP + _GAP, 14.0
    start = top + 7.0 * len(text)
    drawn = element(
        "text", text, transform=f"translate({x:.0f} {top:.0f}) rotate(90)", class_=f"axis t{axis}"
    )
    end = height - _GAP
    if end - start > 14:
        drawn += element(
            "path", d=f"M{x + 4:.0f} {start:.0f}V{end:.0f}m-3 -5l3 5l3 -5", class_=f"arrow a{axis}"
        )
    return drawn
