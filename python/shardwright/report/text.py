"""A plan as text: cost, memory, shardings per layer, certificate. `str(plan)` is this."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwright.plan import Plan
from shardwright.report.claims import certificate_lines
from shardwright.report.shardings import (
    LayerShardings,
    ParameterShardings,
    PrintedSpec,
    layer_shardings,
    parameter_shardings,
)
from shardwright.report.summary import plain_words
from shardwright.report.units import (
    bytes_text,
    count_text,
    microbatches_text,
    seconds_text,
    shape_text,
    share_text,
    time_text,
)

WIDTH = 120
NARROW = 100
_SHARDINGS_TITLE = (
    "Shardings (R whole, S0 cut along mesh axis 0, P0 sum pending over axis 0, = as stored, "
    "+1 other choices)"
)
_MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "other")


def text_report(plan: Plan, *, width: int = WIDTH, color: bool = False) -> str:
    """Returns the report as lines of at most `width` columns, with ANSI colors on request."""
    return print_report(renderable(plan, narrow=width < NARROW), width, color=color)


def print_report(report: RenderableType, width: int, *, color: bool) -> str:
    """A report as lines of at most `width` columns."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        force_jupyter=False,
        legacy_windows=False,
        emoji=False,
        markup=False,
        highlight=False,
    )
    with console.capture() as capture:
        console.print(report)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def renderable(plan: Plan, *, narrow: bool = False) -> RenderableType:
    """The report for a rich console; a narrow one leaves out shapes and module outputs."""
    parts: list[RenderableType] = [_header(plan)]
    parts += report_section("In words", lines_text(plain_words(plan)))
    parts += report_section(f"Time per step: {time_text(plan.time_us)}", _cost_table(plan))
    parts += report_section(_memory_title(plan), _memory_table(plan))
    parts += report_section(_SHARDINGS_TITLE, _sharding_table(plan, narrow))
    parts += report_section("Certificate", lines_text(certificate_lines(plan)))
    if plan.stats is not None:
        parts += report_section("Seconds", lines_text([_seconds_line(plan)]))
    return Group(*parts)


def report_section(title: str, body: RenderableType) -> list[RenderableType]:
    """A title and, moved to the right, what stands under it."""
    return [Text(""), Text(title, style="bold"), Padding(body, (0, 0, 0, 2))]


def lines_text(lines: Iterable[str]) -> Text:
    """Lines as they are."""
    return Text("\n".join(lines))


def _header(plan: Plan) -> Text:
    text = Text("Plan", style="bold")
    text.append(f" for step {plan.graph_hash[:12]}", style="not bold")
    text.append(f" on {plan.cluster}", style="not bold")
    text.append(f"\nmesh {shape_text(plan.mesh_shape)}", style="not bold")
    text.append(f", {count_text(len(plan.stages), 'stage')}", style="not bold")
    microbatches = microbatches_text(plan.num_microbatches, plan.microbatches_in_flight)
    text.append(f", {microbatches}", style="not bold")
    return text


def report_table(*headings: tuple[str, str]) -> Table:
    """A table of these headings, each "l" or "r" for its side."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in headings:
        table.add_column(heading, justify="right" if justify == "r" else "left")
    return table


def _cost_table(plan: Plan) -> Table:
    certificate = plan.certificate
    table = report_table(
        ("", "l"), ("count", "r"), ("bytes", "r"), ("ring bytes/device", "r"),
        ("time", "r"), ("share", "r"),
    )  # fmt: skip
    cost = certificate.cost_us
    table.add_row(
        "compute", "", "", "", time_text(certificate.compute_us),
        share_text(certificate.compute_us, cost),
    )  # fmt: skip
    table.add_row(
        "communication", "", "", "", time_text(certificate.communication_us),
        share_text(certificate.communication_us, cost),
    )  # fmt: skip
    for kind, count in certificate.collectives.items():
        table.add_row(
            f"  {kind.replace('_', '-')}", str(count.count), bytes_text(count.bytes),
            bytes_text(count.ring_bytes_per_device), time_text(count.cost_us),
            share_text(count.cost_us, cost),
        )  # fmt: skip
    return table


def _memory_title(plan: Plan) -> str:
    peak = bytes_text(plan.peak_memory_bytes)
    if not plan.cluster.memory_bytes:
        return f"Memory per device at the peak: {peak}"
    return f"Memory per device at the peak: {peak} of {bytes_text(plan.cluster.memory_bytes)}"


def _memory_table(plan: Plan) -> RenderableType:
    at_peak = plan.certificate.at_peak
    table = report_table(("", "l"), ("bytes", "r"), ("share", "r"), ("", "l"))
    for kind in _MEMORY_KINDS:
        count = getattr(at_peak, kind)
        bar = "█" * round(30 * count / at_peak.total) if at_peak.total else ""
        table.add_row(kind, bytes_text(count), share_text(count, at_peak.total), bar)
    return Group(table, Text(f"The peak is at node {plan.certificate.peak_node}."))


def _sharding_table(plan: Plan, narrow: bool) -> RenderableType:
    headings = [("parameter", "l"), ("stored", "l"), ("used", "l"), ("gradient", "l"),
                ("optimizer state", "l")]  # fmt: skip
    headings += [] if narrow else [("module output", "l"), ("shape", "l")]
    table = report_table(*headings)
    for layer in layer_shardings(parameter_shardings(plan)):
        _add_layer(table, layer, narrow)
    return table


def _layer_title(layer: LayerShardings) -> str:
    return f"{layer.title} ({layer.repeats} x)" if layer.repeats > 1 else layer.title


def _add_layer(table: Table, layer: LayerShardings, narrow: bool) -> None:
    if layer.title:
        table.add_row(Text(_layer_title(layer), style="bold"))
    for row in layer.rows:
        parameter = row.parameter
        cells = [
            f"  {row.name}" if layer.title else row.name,
            parameter.stored.text,
            _used_text(parameter),
            _texts(row.gradients, parameter),
            _texts(row.states, parameter),
        ]
        if not narrow:
            cells += [_texts(row.outputs), "x".join(map(str, parameter.shape)) or "scalar"]
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))


def _used_text(row: ParameterShardings) -> str:
    forward, backward = _unless_stored(row.forward, row), _unless_stored(row.backward, row)
    return forward if forward == backward else f"{forward}, {backward}"


def _unless_stored(spec: PrintedSpec, row: ParameterShardings) -> str:
    return "=" if spec.text == row.stored.text else spec.text


def _texts(specs: Sequence[PrintedSpec], like: ParameterShardings | None = None) -> str:
    """The most frequent spec; where folded layers or states differ, with a count of the others."""
    if not specs:
        return "-"
    text = specs[0].text if like is None else _unless_stored(specs[0], like)
    return f"{text} +{len(specs) - 1}" if len(specs) > 1 else text


def _seconds_line(plan: Plan) -> str:
    assert plan.stats is not None
    seconds = plan.stats.seconds
    parts = ", ".join(f"{phase} {seconds_text(s)}" for phase, s in seconds.items())
    return f"{parts}; in all {seconds_text(sum(seconds.values()))}"


def terminal_width() -> int:
    """Columns of the terminal within reason; the default where there is none."""
    return max(80, min(160, shutil.get_terminal_size((WIDTH, 24)).columns))
