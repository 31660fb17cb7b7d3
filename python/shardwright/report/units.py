"""Quantities as people read them: bytes, microseconds, counts, shares."""

from collections.abc import Sequence

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: float) -> str:
    """`"9.4 GiB"`, `"512.0 MiB"`, `"12 B"`."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_BYTE_UNITS[unit]}"


def time_text(time_us: float) -> str:
    """`"1.234 s"`, `"12.3 ms"`, `"4.5 us"`: four significant digits."""
    for scale, unit in ((1e6, "s"), (1e3, "ms")):
        if abs(time_us) >= scale:
            return f"{_four_digits(time_us / scale)} {unit}"
    return f"{_four_digits(time_us)} us"


def _four_digits(value: float) -> str:
    size = abs(value)
    digits = 3 if size < 10 else 2 if size < 100 else 1
    return f"{value:.{digits}f}"


def seconds_text(seconds: float) -> str:
    """`"0.21 s"`."""
    return f"{seconds:.2f} s"


def share_text(part: float, whole: float) -> str:
    """`"12.5 %"`; `"0 %"` of nothing."""
    share = part / whole if whole else 0.0
    return f"{100 * share:.1f} %" if share else "0 %"


def gap_text(gap: float) -> str:
    """A relative gap in per cent, never rounded down to a proof: `"0 %"` is exactly 0."""
    if gap == 0:
        return "0 %"
    return f"{100 * gap:.2f} %" if gap >= 1e-4 else f"{100 * gap:.1e} %"


def shape_text(shape: Sequence[int]) -> str:
    """`"2 x 4"`."""
    return " x ".join(map(str, shape))


def count_text(count: int, noun: str) -> str:
    """`"1 device"`, `"8 devices"`, `"2 microbatches"`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def microbatches_text(count: int, in_flight: int) -> str:
    """`"1 microbatch"`, `"8 microbatches, 3 microbatches in flight"`."""
    text = count_text(count, "microbatch")
    return text if in_flight == 1 else f"{text}, {count_text(in_flight, 'microbatch')} in flight"
