"""A plan of a step in stages as self-contained HTML: stages, timeline, transfers, every stage."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardwright.pipeline.plan import PipelinePlan
from shardwright.report import pipeline_facts as facts
from shardwright.report.html import MEMORY_COLORS, box, plan_body, whole_page, word_list
from shardwright.report.html_style import style_sheet
from shardwright.report.svg import Part, legend, stacked_bar
from shardwright.report.timeline import timeline_legend, timeline_picture
from shardwright.report.units import bytes_text, gap_text, time_text

_TIME_COLORS = ("c6", "c1", "c3", "c2")


def pipeline_page(plan: PipelinePlan) -> str:
    """A whole page, to be opened in a browser."""
    title = f"Plan on {plan.cluster.name}, {facts.title_line(plan)}"
    return whole_page(title, pipeline_fragment(plan))


def pipeline_fragment(plan: PipelinePlan) -> str:
    """One `div` with its own style sheet: what notebooks show."""
    schedule, simulation = plan.simulate()
    timeline = timeline_picture(schedule, simulation, rows=_row_names(plan))
    bubble = f"{100 * plan.simulation.bubble_share:.1f} %"
    boxes = [
        box("In words", word_list(facts.pipeline_words(plan)), "half"),
        box("Certificate", word_list(facts.pipeline_claims(plan)), "half"),
        box("Stages (times per microbatch, the update per step)", _stages(plan), "wide"),
        box(
            f"{plan.schedule}: {time_text(simulation.pipeline_us)}, bubble {bubble}",
            timeline + timeline_legend(simulation),
            "wide",
        ),
        box("Transfers between stages", _transfers(plan), "wide"),
        box(f"Time per step: {time_text(plan.time_us)}", _time(plan), "half"),
        box("Memory per device at the peak, by stage", _memory(plan), "half"),
    ]
    stages = "".join(_stage(plan, number) for number in range(len(plan.stages)))
    return (
        f'<div class="swp"><style>{style_sheet()}</style>{_header(plan)}'
        f'<div class="grid">{"".join(boxes)}</div>{stages}</div>'
    )


def _header(plan: PipelinePlan) -> str:
    certificate = plan.certificate
    proven = certificate.status == "optimal"
    badge = "stages optimal" if proven else "stages not searched"
    if not proven and certificate.gap is not None:
        badge = f"gap of stages {gap_text(certificate.gap)}"
    line = f"{plan.cluster}, {facts.title_line(plan)}"
    return (
        f"<h2>{escape(time_text(plan.time_us))} per step"
        f'<span class="badge {"good" if proven else "warn"}">{escape(badge)}</span></h2>'
        f'<p class="soft">{escape(line)}; step <code>{escape(plan.graph_hash[:12])}</code></p>'
    )


def _row_names(plan: PipelinePlan) -> list[str]:
    """By pipeline rank: the stages that run there."""
    order = list(dict.fromkeys(stage.first_rank for stage in plan.stages))
    return [
        "stage " + ", ".join(str(n) for n, s in enumerate(plan.stages) if s.first_rank == first)
        for first in order
    ]


def _table(headings: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    def cell(tag: str, text: str, justify: str) -> str:
        css = ' class="num"' if justify == "r" else ' class="wrap"'
        return f"<{tag}{css}>{escape(text)}</{tag}>"

    head = "".join(cell("th", name, justify) for name, justify in headings)
    body = "".join(
        "<tr>"
        + "".join(
            cell("td", text, justify) for text, (_, justify) in zip(row, headings, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _stages(plan: PipelinePlan) -> str:
    rows = [facts.stage_cells(plan, number) for number in range(len(plan.stages))]
    return _table(facts.STAGE_HEADINGS, rows)


def _transfers(plan: PipelinePlan) -> str:
    rows = [row.cells() for row in facts.transfer_rows(plan)]
    return _table(facts.TRANSFER_HEADINGS, rows) if rows else '<p class="soft">None.</p>'


def _time(plan: PipelinePlan) -> str:
    parts = [
        Part(name, time, time_text(time), color)
        for (name, time), color in zip(facts.time_parts(plan), _TIME_COLORS, strict=True)
    ]
    return stacked_bar(parts, title="time per step") + legend(parts)


def _memory(plan: PipelinePlan) -> str:
    memory = plan.cluster.memory_bytes
    whole = float(max(memory, plan.peak_memory_bytes) or 1)
    limit = (float(memory), f"device memory {bytes_text(memory)}") if memory else None
    bars = []
    for number, stage in enumerate(plan.stages):
        at_peak = stage.plan.certificate.at_peak
        parts = [
            Part(kind, getattr(at_peak, kind), bytes_text(getattr(at_peak, kind)), color)
            for kind, color in MEMORY_COLORS.items()
        ]
        peak = bytes_text(stage.plan.peak_memory_bytes)
        bars.append(f'<p class="small">stage {number}: {escape(peak)}</p>')
        title = f"memory of stage {number}"
        bars.append(stacked_bar(parts, title=title, shares=False, whole=whole, limit=limit))
    return "".join(bars) + legend([Part(k, 1.0, "", c) for k, c in MEMORY_COLORS.items()])


def _stage(plan: PipelinePlan, number: int) -> str:
    """The stage's usual page, folded."""
    stage = plan.stages[number]
    title = f"Stage {number}: {facts.stage_layers(stage) or 'no layers'}"
    return f"<details><summary>{escape(title)}</summary>{plan_body(stage.plan)}</details>"
