"""A plan of a step in stages as text: stages, transfers, time, then every stage's own report."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardwright.pipeline.plan import PipelinePlan
from shardwright.report import pipeline_facts as facts
from shardwright.report.text import (
    NARROW,
    WIDTH,
    lines_text,
    print_report,
    renderable,
    report_section,
    report_table,
)
from shardwright.report.units import bytes_text, share_text, time_text


def pipeline_text_report(plan: PipelinePlan, *, width: int = WIDTH, color: bool = False) -> str:
    """Returns the report as lines of at most `width` columns, with ANSI colors on request."""
    return print_report(pipeline_renderable(plan, narrow=width < NARROW), width, color=color)


def pipeline_renderable(plan: PipelinePlan, *, narrow: bool = False) -> RenderableType:
    """The report for a rich console."""
    header = Text("Pipeline plan", style="bold")
    header.append(f" for step {plan.graph_hash[:12]} on {plan.cluster}", style="not bold")
    header.append(f"\n{facts.title_line(plan)}", style="not bold")
    parts: list[RenderableType] = [header]
    parts += report_section("In words", lines_text(facts.pipeline_words(plan)))
    parts += report_section("Stages (times per microbatch; the update per step)", _stages(plan))
    parts += report_section("Transfers between stages", _transfers(plan))
    parts += report_section(f"Time per step: {time_text(plan.time_us)}", _time(plan))
    parts += report_section("Certificate", lines_text(facts.pipeline_claims(plan)))
    for number, stage in enumerate(plan.stages):
        title = f"Stage {number}: {facts.stage_layers(stage) or 'no layers'}"
        parts += [Text(""), Text(title, style="bold")]
        parts.append(Padding(renderable(stage.plan, narrow=narrow), (0, 0, 0, 2)))
    return Group(*parts)


def _stages(plan: PipelinePlan) -> RenderableType:
    table = report_table(*facts.STAGE_HEADINGS)
    for number in range(len(plan.stages)):
        table.add_row(*(Text(cell) for cell in facts.stage_cells(plan, number)))
    memory = plan.cluster.memory_bytes
    limit = f" of {bytes_text(memory)}" if memory else ""
    peak = f"Most memory per device: {bytes_text(plan.peak_memory_bytes)}{limit}."
    return Group(table, Text(peak))


def _transfers(plan: PipelinePlan) -> RenderableType:
    rows = facts.transfer_rows(plan)
    if not rows:
        return Text("None.")
    table = report_table(*facts.TRANSFER_HEADINGS)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.cells()))
    return table


def _time(plan: PipelinePlan) -> RenderableType:
    table = report_table(("", "l"), ("time", "r"), ("share", "r"))
    for name, time in facts.time_parts(plan):
        table.add_row(name, time_text(time), share_text(time, plan.time_us))
    bubble = f"Bubble: {100 * plan.simulation.bubble_share:.1f} % of forward and backward."
    return Group(table, Text(bubble))
