"""Memory over the step as stacked areas, each phase drawn to its own scale of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from shardwright.report.svg import element, label, number_text, picture

_WIDTH, _HEIGHT = 940.0, 190.0
_TOP, _BOTTOM = 18.0, 18.0
# A limit so many times above the peak would press the areas flat and is left out.
_FARTHEST_LIMIT = 2.5

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Sample:
    """Memory at one moment: values from bottom to top, and the phase of the step."""

    values: tuple[float, ...]
    phase: str


def memory_chart(
    samples: Sequence[Sample],
    colors: Sequence[str],
    *,
    limit: tuple[float, str] | None,
    peak_text: str,
    title: str,
) -> str:
    """Draws the samples side by side, at equal distances.

    Args:
        samples: At least one, in order.
        colors: CSS class of each value.
        limit: A value to mark, with its text; left out where it is far above the peak.
        peak_text: Written at the highest point.
        title: Said to readers that cannot see it.

    Returns:
        The svg element.
    """
    high = max(sum(sample.values) for sample in samples) or 1.0
    near = limit is not None and limit[0] <= _FARTHEST_LIMIT * high
    scale = 1.04 * max(high, limit[0] if limit and near else 0.0)

    def at_x(index: float) -> float:
        return _WIDTH * index / len(samples)

    def at_y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / scale)

    drawn = [_phase_bands(samples, at_x)]
    below = [0.0] * len(samples)
    for index, color in enumerate(colors):
        above = [b + s.values[index] for b, s in zip(below, samples, strict=True)]
        corners = _stairs(above, at_x, at_y) + _stairs(below, at_x, at_y)[::-1]
        points = " ".join(f"{number_text(x)},{number_text(y)}" for x, y in corners)
        drawn.append(element("polygon", points=points, class_=color))
        below = above
    drawn.append(_peak_mark(below, peak_text, at_x, at_y))
    if limit and near:
        y = at_y(limit[0])
        drawn.append(element("line", x1=0.0, x2=_WIDTH, y1=y, y2=y, class_="limit"))
        drawn.append(label(limit[1], _WIDTH - 2, y - 4, anchor="end", css="small"))
    return picture("".join(drawn), _WIDTH, _HEIGHT, title)


def _stairs(values: Sequence[float], at_x: Scale, at_y: Scale) -> list[tuple[float, float]]:
    """Corners of a line that holds each value for the width of one sample."""
    return [
        (at_x(float(x)), at_y(value))
        for index, value in enumerate(values)
        for x in (index, index + 1)
    ]


def _peak_mark(totals: Sequence[float], text: str, at_x: Scale, at_y: Scale) -> str:
    peak = max(range(len(totals)), key=totals.__getitem__)
    x, y = at_x(peak + 0.5), at_y(totals[peak])
    mark = element("circle", cx=x, cy=y, r=3.5, class_="dot")
    # Well below the top line of the areas, which may fall to both sides.
    inside = min(max(x, 50.0), _WIDTH - 50.0)
    return mark + label(text, inside, y + 32, anchor="middle", css="on")


def _phase_bands(samples: Sequence[Sample], at_x: Scale) -> str:
    drawn: list[str] = []
    begin = 0
    for number, (phase, group) in enumerate(groupby(sample.phase for sample in samples)):
        end = begin + len(list(group))
        left, right = at_x(float(begin)), at_x(float(end))
        drawn.append(
            element(
                "rect", x=left, y=_TOP, width=right - left, height=_HEIGHT - _TOP - _BOTTOM,
                class_="band alt" if number % 2 else "band",
            )
        )  # fmt: skip
        if right - left > 8 * len(phase):
            middle = (left + right) / 2
            drawn.append(label(phase, middle, _HEIGHT - 5, anchor="middle", css="small"))
        begin = end
    return "".join(drawn)
