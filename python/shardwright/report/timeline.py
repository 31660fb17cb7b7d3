"""A simulated schedule as a picture: one row per pipeline rank, time to the right."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardwright._core import Schedule, Simulation, TimedAction
from shardwright.report.svg import Part, element, label, legend, picture
from shardwright.report.units import time_text

_WIDTH, _LEFT, _ROW, _GAP, _TOP = 940.0, 62.0, 20.0, 4.0, 6.0
_MOST_ROWS = 32
# Computations narrower than this many pixels are drawn together.
_NARROW = 1.5
_COLORS = {"F": "c1", "B": "c3", "I": "c3", "W": "c6", "mixed": "c5"}
_LEGEND = {"F": "forward", "B": "backward", "I": "backward: inputs", "W": "backward: weights"}


def timeline_picture(
    schedule: Schedule, simulation: Simulation, *, rows: Sequence[str] | None = None
) -> str:
    """Draws the computations of every rank; the space between them is the bubble.

    Where computations are narrower than a pixel or two, those that follow each other without a
    pause are drawn as one block. Of many ranks the first 32 are drawn.

    Args:
        schedule: The lists.
        simulation: When everything of them happens.
        rows: Names of the ranks.

    Returns:
        The svg element.
    """
    num_rows = min(schedule.num_ranks, _MOST_ROWS)
    names = rows or [f"rank {rank}" for rank in range(num_rows)]
    scale = (_WIDTH - _LEFT) / (simulation.pipeline_us or 1.0)
    height = _TOP + num_rows * (_ROW + _GAP) + 18
    drawn: list[str] = []
    for rank in range(num_rows):
        y = _TOP + rank * (_ROW + _GAP)
        drawn.append(label(names[rank], 0, y + 14, css="small"))
        drawn.append(
            element("rect", x=_LEFT, y=y, width=_WIDTH - _LEFT, height=_ROW, class_="empty")
        )
        computations = [
            timed
            for timed in simulation.actions
            if timed.rank == rank and not timed.action.is_transfer
        ]
        drawn += [_block(group, y, scale) for group in _groups(computations, scale)]
    bottom = height - 4
    drawn.append(label("0", _LEFT, bottom, css="small"))
    drawn.append(
        label(time_text(simulation.pipeline_us), _WIDTH, bottom, anchor="end", css="small")
    )
    if num_rows < schedule.num_ranks:
        middle = _LEFT + (_WIDTH - _LEFT) / 2
        text = f"... {schedule.num_ranks} ranks in all"
        drawn.append(label(text, middle, bottom, anchor="middle", css="small"))
    return picture("".join(drawn), _WIDTH, height, timeline_title(schedule, simulation))


def timeline_title(schedule: Schedule, simulation: Simulation) -> str:
    """One line: ranks, microbatches, time, bubble."""
    return (
        f"{schedule.num_ranks} ranks, {schedule.num_stages} stages, {schedule.num_microbatches} "
        f"microbatches: {time_text(simulation.time_us)}, bubble "
        f"{100 * simulation.bubble_share:.1f} %"
    )


def timeline_legend(simulation: Simulation) -> str:
    """Kinds of computation with the time they take over all ranks, as an HTML list."""
    spent: dict[str, float] = {}
    for timed in simulation.actions:
        if not timed.action.is_transfer:
            kind = timed.action.kind
            spent[kind] = spent.get(kind, 0.0) + timed.end_us - timed.start_us
    return legend(
        [
            Part(_LEGEND[kind], time, time_text(time), _COLORS[kind])
            for kind, time in sorted(spent.items())
        ]
    )


def _groups(computations: Sequence[TimedAction], scale: float) -> list[list[TimedAction]]:
    """Computations to draw as one block each."""
    groups: list[list[TimedAction]] = []
    for timed in computations:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and (timed.start_us - last.end_us) * scale < 0.5
            and (timed.end_us - timed.start_us) * scale < _NARROW
            and (last.end_us - last.start_us) * scale < _NARROW
        ):
            groups[-1].append(timed)
        else:
            groups.append([timed])
    return groups


def _block(group: Sequence[TimedAction], y: float, scale: float) -> str:
    first, last = group[0], group[-1]
    x, width = _LEFT + first.start_us * scale, (last.end_us - first.start_us) * scale
    kinds = {timed.action.kind for timed in group}
    text = str(first.action) if len(group) == 1 else f"{first.action} to {last.action}"
    time = f"{time_text(first.start_us)} to {time_text(last.end_us)}"
    tip = f"<title>{escape(text)}: {escape(time)}</title>"
    color = _COLORS[kinds.pop()] if len(kinds) == 1 else _COLORS["mixed"]
    block = element("rect", tip, x=x, y=y, width=max(width, 0.3), height=_ROW, class_=color)
    inside = str(first.action.microbatch)
    if len(group) == 1 and width >= 7 * len(inside) + 4:
        block += label(inside, x + width / 2, y + 14, anchor="middle", css="on")
    return block
