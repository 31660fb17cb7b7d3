"""Small SVG pictures: bars, chart of memory over time. Colors are CSS classes of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Part:
    """One part of a bar.

    Attributes:
        name: As shown in the legend.
        value: Its size, in the unit of the bar.
        text: The size as shown.
        color: CSS class, "c1" to "c6".
    """

    name: str
    value: float
    text: str
    color: str


def element(tag: str, content: str = "", **attributes: object) -> str:
    """One element; attribute values are escaped, `_` in names becomes `-`, `class_` is class."""
    words = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(number_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{words}>{content}</{tag}>" if content else f"<{tag}{words}/>"


def number_text(value: object) -> str:
    """Numbers with at most two decimals, everything else as it is."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def label(text: str, x: float, y: float, *, anchor: str = "start", css: str = "") -> str:
    """A text element; `text` is escaped."""
    return element(
        "text", escape(text), x=float(x), y=float(y), text_anchor=anchor, class_=css or None
    )


def picture(content: str, width: float, height: float, title: str) -> str:
    """An svg element with a title for readers that cannot see it; shrinks with the page."""
    return element(
        "svg",
        f"<title>{escape(title)}</title>{content}",
        viewBox=f"0 0 {number_text(float(width))} {number_text(float(height))}",
        width=float(width),
        height=float(height),
        role="img",
    )


def stacked_bar(
    parts: Sequence[Part],
    *,
    title: str,
    whole: float | None = None,
    shares: bool = True,
    limit: tuple[float, str] | None = None,
    width: float = 460,
) -> str:
    """A horizontal bar of the parts side by side.

    Args:
        parts: From left to right.
        title: Said to readers that cannot see the bar.
        whole: What the full width stands for; by default the sum of the parts.
        shares: Writes shares of the whole into the parts, else their sizes.
        limit: A value to mark by a line, with its text.
        width: Pixels.

    Returns:
        The svg element.
    """
    total = whole or sum(part.value for part in parts) or 1.0
    top, bar = 16.0 if limit else 0.0, 26.0
    drawn = [element("rect", x=0.0, y=top, width=width, height=bar, rx=3, class_="empty")]
    x = 0.0
    for part in parts:
        size = width * part.value / total
        if size >= 0.5:
            tip = f"<title>{escape(part.name)}: {escape(part.text)}</title>"
            drawn.append(
                element("rect", tip, x=x, y=top, width=size, height=bar, class_=part.color)
            )
            inside = f"{100 * part.value / total:.0f} %" if shares else part.text
            if size >= 7 * len(inside) + 4:
                drawn.append(label(inside, x + size / 2, top + 17, anchor="middle", css="on"))
        x += size
    if limit:
        drawn.append(_limit_mark(limit, total, width, top, bar))
    return picture("".join(drawn), width, top + bar + 2, title)


def _limit_mark(
    limit: tuple[float, str], total: float, width: float, top: float, bar: float
) -> str:
    at = min(width - 1, width * limit[0] / total)
    anchor = "end" if at > width / 2 else "start"
    return element("line", x1=at, x2=at, y1=top - 4, y2=top + bar + 2, class_="limit") + label(
        limit[1], at, top - 6, anchor=anchor, css="small"
    )


def legend(parts: Sequence[Part]) -> str:
    """The parts with their colors and sizes, as an HTML list."""
    items = [
        element(
            "li",
            element("i", " ", class_=part.color)
            + f"<span>{escape(part.name)}</span><b>{escape(part.text)}</b>",
        )
        for part in parts
        if part.value
    ]
    return element("ul", "".join(items), class_="legend")


@dataclass(frozen=True)
class Sample:
    """Memory at one moment: values from bottom to top, and the phase of the step."""

    moment: float
    values: tuple[float, ...]
    phase: str


def memory_chart(
    samples: Sequence[Sample],
    colors: Sequence[str],
    *,
    limit: tuple[float, str] | None,
    peak_text: str,
    title: str,
    width: float = 940,
    height: float = 190,
) -> str:
    """Stacked areas over the moments of the step, with phases marked and the limit as a line.

    Args:
        samples: At least two, by moment.
        colors: CSS class of each value.
        limit: A value to mark, with its text; left out where it is far above the peak.
        peak_text: Written at the highest point.
        title: Said to readers that cannot see it.
        width: Pixels.
        height: Pixels.

    Returns:
        The svg element.
    """
    top, bottom = 18.0, 18.0
    high = max(sum(sample.values) for sample in samples) or 1.0
    scale = max(high, limit[0] if limit and limit[0] < 2.5 * high else 0.0) * 1.04
    first, last = samples[0].moment, samples[-1].moment

    def at_x(moment: float) -> float:
        return width * (moment - first) / ((last - first) or 1.0)

    def at_y(value: float) -> float:
        return top + (height - top - bottom) * (1 - value / scale)

    drawn = [_phase_bands(samples, at_x, top, height - bottom)]
    below = [0.0] * len(samples)
    for index, color in enumerate(colors):
        above = [b + s.values[index] for b, s in zip(below, samples, strict=True)]
        outline = _steps(samples, above, at_x, at_y)
        back = _steps(samples, below, at_x, at_y)[::-1]
        points = " ".join(f"{number_text(x)},{number_text(y)}" for x, y in outline + back)
        drawn.append(element("polygon", points=points, class_=color))
        below = above
    peak = max(range(len(samples)), key=lambda i: below[i])
    x, y = at_x(samples[peak].moment), at_y(below[peak])
    drawn.append(element("circle", cx=x, cy=y, r=3.5, class_="dot"))
    anchor = "start" if x < width / 2 else "end"
    side = 7 if anchor == "start" else -7
    drawn.append(label(peak_text, x + side, y - 5, anchor=anchor, css="small"))
    if limit and limit[0] <= scale:
        y = at_y(limit[0])
        drawn.append(element("line", x1=0.0, x2=width, y1=y, y2=y, class_="limit"))
        drawn.append(label(limit[1], width - 2, y - 4, anchor="end", css="small"))
    return picture("".join(drawn), width, height, title)


def _steps(
    samples: Sequence[Sample], values: Sequence[float], at_x: Scale, at_y: Scale
) -> list[tuple[float, float]]:
    """Corners of a staircase: a value holds until the next sample."""
    corners = []
    for i, (sample, value) in enumerate(zip(samples, values, strict=True)):
        if i:
            corners.append((at_x(sample.moment), at_y(values[i - 1])))
        corners.append((at_x(sample.moment), at_y(value)))
    return corners


def _phase_bands(samples: Sequence[Sample], at_x: Scale, top: float, bottom: float) -> str:
    drawn: list[str] = []
    begin = 0
    for i in range(1, len(samples) + 1):
        if i < len(samples) and samples[i].phase == samples[begin].phase:
            continue
        left = at_x(samples[begin].moment)
        right = at_x(samples[min(i, len(samples) - 1)].moment)
        odd = "band" if len(drawn) % 4 == 0 else "band alt"
        drawn.append(
            element(
                "rect", x=left, y=top, width=max(right - left, 0.0), height=bottom - top, class_=odd
            )
        )
        name = samples[begin].phase if right - left > 44 else ""
        drawn.append(label(name, (left + right) / 2, bottom + 13, anchor="middle", css="small"))
        begin = i
    return "".join(drawn)
