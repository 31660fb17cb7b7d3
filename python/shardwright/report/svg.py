"""SVG elements, bars and legends. Colors are CSS classes of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


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
