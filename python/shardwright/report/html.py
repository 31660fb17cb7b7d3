"""A plan as self-contained HTML with inline SVG: no scripts, nothing from the network.

Every name that comes from the user's model is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardwright.plan import Plan
from shardwright.report.claims import scope_claim, status_claim
from shardwright.report.glyph import glyph
from shardwright.report.html_style import style_sheet
from shardwright.report.memory_chart import Sample, memory_chart
from shardwright.report.mesh_picture import mesh_picture
from shardwright.report.shardings import (
    LayerRow,
    LayerShardings,
    ParameterShardings,
    PrintedSpec,
    layer_shardings,
    parameter_shardings,
)
from shardwright.report.summary import plain_words
from shardwright.report.svg import Part, legend, stacked_bar
from shardwright.report.units import (
    bytes_text,
    count_text,
    gap_text,
    microbatches_text,
    seconds_text,
    shape_text,
    time_text,
)

MEMORY_COLORS = {
    "parameters": "c1",
    "gradients": "c2",
    "optimizer": "c3",
    "activations": "c4",
    "other": "c5",
}
_COLLECTIVE_COLORS = {
    "all_reduce": "c2",
    "reduce_scatter": "c3",
    "all_gather": "c4",
    "all_to_all": "c6",
}


def html_page(plan: Plan) -> str:
    """A whole page, to be opened in a browser."""
    title = f"Plan on {plan.cluster.name}, mesh {shape_text(plan.mesh_shape)}"
    return whole_page(title, html_fragment(plan))


def whole_page(title: str, fragment: str) -> str:
    """A page that shows one fragment."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>"
        "<style>body{margin:0;background:Canvas}.swp{margin:0 auto}</style>"
        f"</head><body>{fragment}</body></html>\n"
    )


def html_fragment(plan: Plan) -> str:
    """One `div` with its own style sheet: what notebooks show."""
    return f'<div class="swp"><style>{style_sheet()}</style>{plan_body(plan)}</div>'


def plan_body(plan: Plan) -> str:
    """Heading and boxes, for a `div` that has the style sheet."""
    words = box("In words", word_list(plain_words(plan)))
    boxes = [
        f'<div class="stack half">{words}{box("Certificate", _certificate(plan))}</div>',
        box(f"Mesh {shape_text(plan.mesh_shape)}", _mesh(plan), "fit"),
        box(f"Time per step: {time_text(plan.time_us)}", _time_bar(plan), "half"),
        box(_memory_title(plan), _memory_bar(plan), "half"),
    ]
    timeline = _timeline(plan)
    if timeline:
        boxes.append(
            box("Memory per device over the step (each phase to its own scale)", timeline, "wide")
        )
    boxes += [
        box("Shardings", _shardings(plan), "wide"),
        box("Collectives", _collectives(plan), "half"),
    ]
    search = _search(plan)
    if search:
        boxes.append(box("Search", search, "half"))
    return f'{_header(plan)}<div class="grid">{"".join(boxes)}</div>'


def box(title: str, content: str, css: str = "") -> str:
    """A titled frame; the content is HTML."""
    return f'<div class="box {css}"><h3>{escape(title)}</h3>{content}</div>'


def _header(plan: Plan) -> str:
    certificate = plan.certificate
    proven = certificate.status == "optimal"
    badge = "optimal" if proven else f"gap {gap_text(certificate.gap)}"
    facts = ", ".join(
        [
            str(plan.cluster),
            f"mesh {shape_text(plan.mesh_shape)}",
            count_text(len(plan.stages), "stage"),
            microbatches_text(plan.num_microbatches, plan.microbatches_in_flight),
        ]
    )
    return (
        f"<h2>{escape(time_text(plan.time_us))} per step"
        f'<span class="badge {"good" if proven else "warn"}">{escape(badge)}</span></h2>'
        f'<p class="soft">{escape(facts)}; step <code>{escape(plan.graph_hash[:12])}</code></p>'
    )


def word_list(lines: Sequence[str]) -> str:
    """Sentences as a list."""
    return f'<ul class="words">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _mesh(plan: Plan) -> str:
    stage = plan.stages[0]
    drawn = mesh_picture(stage.mesh_shape, stage.ranks, plan.cluster.devices_per_host)
    hosts = count_text(plan.cluster.num_hosts, "host")
    devices = count_text(plan.cluster.devices_per_host, "device")
    return f'{drawn}<p class="small">{hosts} of {devices}, shaded; the numbers are ranks.</p>'


def _time_bar(plan: Plan) -> str:
    certificate = plan.certificate
    parts = [Part("compute", certificate.compute_us, time_text(certificate.compute_us), "c1")]
    for kind, count in certificate.collectives.items():
        name = f"{kind.replace('_', '-')} ({count.count} x)"
        color = _COLLECTIVE_COLORS.get(kind, "c5")
        parts.append(Part(name, count.cost_us, time_text(count.cost_us), color))
    return stacked_bar(parts, title="time per step") + legend(parts)


def _memory_title(plan: Plan) -> str:
    peak = bytes_text(plan.peak_memory_bytes)
    memory = plan.cluster.memory_bytes
    return f"Peak memory per device: {peak}" + (f" of {bytes_text(memory)}" if memory else "")


def _memory_bar(plan: Plan) -> str:
    at_peak = plan.certificate.at_peak
    parts = [
        Part(kind, getattr(at_peak, kind), bytes_text(getattr(at_peak, kind)), color)
        for kind, color in MEMORY_COLORS.items()
    ]
    memory = plan.cluster.memory_bytes
    bar = stacked_bar(
        parts,
        title="memory per device at the peak",
        shares=False,
        whole=float(max(memory, at_peak.total) or 1),
        limit=(float(memory), f"device memory {bytes_text(memory)}") if memory else None,
    )
    node = escape(plan.certificate.peak_node)
    return f'{bar}{legend(parts)}<p class="small">at node <code>{node}</code></p>'


def _timeline(plan: Plan) -> str:
    samples = [
        Sample(
            tuple(float(getattr(sample.memory, kind)) for kind in MEMORY_COLORS),
            sample.phase,
        )
        for sample in plan.certificate.memory_timeline
    ]
    if not samples:
        return ""
    memory = plan.cluster.memory_bytes
    limit = (float(memory), f"device memory {bytes_text(memory)}") if memory else None
    return memory_chart(
        samples,
        list(MEMORY_COLORS.values()),
        limit=limit,
        peak_text=f"peak {bytes_text(plan.peak_memory_bytes)}",
        title="memory per device over the step",
    )


def _shardings(plan: Plan) -> str:
    headings = (
        "parameter", "shape", "stored", "used", "gradient", "optimizer state", "module output",
    )  # fmt: skip
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        _layer_rows(layer, plan.mesh_shape, len(headings))
        for layer in layer_shardings(parameter_shardings(plan))
    )
    return (
        '<p class="small">One symbol per dim: R is whole, S0 is cut along mesh axis 0, P0 a sum '
        "still pending over axis 0. Filled is what the first device holds, faint is the same as "
        "stored, +1 counts other choices among the folded layers. Where forward and backward use "
        "a parameter differently, both are shown.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _layer_rows(layer: LayerShardings, mesh_shape: Sequence[int], num_columns: int) -> str:
    rows = []
    if layer.title:
        alike = f' <span class="soft">{layer.repeats} layers alike</span>'
        title = escape(layer.title) + (alike if layer.repeats > 1 else "")
        rows.append(f'<tr class="layer"><td colspan="{num_columns}">{title}</td></tr>')
    for line in layer.rows:
        row = line.parameter
        used = (
            [row.forward] if row.forward.text == row.backward.text else [row.forward, row.backward]
        )
        cells = [
            f"<td>{escape(line.name)}</td>",
            f'<td class="mono">{escape(" x ".join(map(str, row.shape)) or "scalar")}</td>',
            _spec_cell(row, [row.stored], mesh_shape),
            _spec_cell(row, used, mesh_shape, same_as=row.stored),
            _gradient_cell(line, mesh_shape),
            _state_cell(line, mesh_shape),
            _output_cell(line),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return "".join(rows)


def _spec_cell(
    row: ParameterShardings,
    specs: Sequence[PrintedSpec],
    mesh_shape: Sequence[int],
    same_as: PrintedSpec | None = None,
) -> str:
    if not specs:
        return '<td class="soft">-</td>'
    same = same_as is not None and [spec.text for spec in specs] == [same_as.text]
    drawn = "".join(
        glyph(row.shape, spec.text, mesh_shape, title=spec.text)
        + f"<span>{escape(spec.text)}</span>"
        for spec in specs
    )
    return f'<td class="spec"><div class="{"cell same" if same else "cell"}">{drawn}</div></td>'


def _gradient_cell(line: LayerRow, mesh_shape: Sequence[int]) -> str:
    """The gradient as it is held; before it what was pending when it was made."""
    cell = _common_cell(line, line.gradients, mesh_shape)
    made = line.parameter.gradient_made
    pending = [] if made is None else [word for word in made.text.split() if word.startswith("P")]
    if made is None or not pending:
        return cell
    before = f'<span class="soft">{escape(" ".join(pending))} &rarr;</span>'
    tip = f'<td title="{escape(f"made as {made.text}")}" '
    return cell.replace("<td ", tip, 1).replace("<svg", f"{before}<svg", 1)


def _state_cell(line: LayerRow, mesh_shape: Sequence[int]) -> str:
    keys = escape(", ".join(sorted(line.parameter.state)))
    return _common_cell(line, line.states, mesh_shape).replace("<td ", f'<td title="{keys}" ', 1)


def _common_cell(line: LayerRow, specs: Sequence[PrintedSpec], mesh_shape: Sequence[int]) -> str:
    """The most frequent spec, with a count of the others."""
    cell = _spec_cell(line.parameter, specs[:1], mesh_shape, same_as=line.parameter.stored)
    return cell.replace("</span></div>", f"{_others(specs)}</span></div>")


def _output_cell(line: LayerRow) -> str:
    output = line.parameter.output
    if output is None:
        return '<td class="soft">-</td>'
    shape = " x ".join(map(str, output.shape))
    text = escape(line.outputs[0].text) + _others(line.outputs)
    return f'<td class="spec" title="{escape(shape)}">{text}</td>'


def _others(specs: Sequence[PrintedSpec]) -> str:
    """What else occurs in folded layers or states: a count, with the specs as a tip."""
    if len(specs) < 2:
        return ""
    tip = escape(", ".join(spec.text for spec in specs[1:]))
    return f' <span class="soft" title="{tip}">+{len(specs) - 1}</span>'


def _certificate(plan: Plan) -> str:
    certificate = plan.certificate
    facts = (
        ("cost", time_text(certificate.cost_us)),
        ("lower bound", time_text(certificate.lower_bound_us)),
        ("gap", gap_text(certificate.gap)),
        ("status", certificate.status.replace("_", " ")),
    )
    listed = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts)
    said = "".join(f"<p>{escape(text)}</p>" for text in (status_claim(plan), scope_claim(plan)))
    return f'<dl>{listed}</dl><div class="soft">{said}</div>'


def _trial_row(shape: Sequence[int], cost_us: float | None, status: str) -> str:
    cost = "-" if cost_us is None else time_text(cost_us)
    if cost_us is not None:
        verdict = status.replace("_", " ")
    else:
        verdict = "bounded above the best" if status == "slower" else "none found that fits"
    return (
        f'<tr><td>{escape(shape_text(shape))}</td><td class="num">{escape(cost)}</td>'
        f"<td>{escape(verdict)}</td></tr>"
    )


def _search(plan: Plan) -> str:
    """Mesh shapes that were tried, and seconds by phase; empty for a loaded plan."""
    if plan.stats is None:
        return ""
    rows = "".join(_trial_row(*trial) for trial in plan.stats.trials)
    seconds = plan.stats.seconds
    parts = ", ".join(f"{phase} {seconds_text(spent)}" for phase, spent in seconds.items())
    total = seconds_text(sum(seconds.values()))
    return (
        f'<p class="soft">{escape(total)}: {escape(parts)}.</p>'
        '<table><thead><tr><th>mesh tried</th><th class="num">time per step</th><th>status</th>'
        f"</tr></thead><tbody>{rows}</tbody></table>"
    )


def _collectives(plan: Plan) -> str:
    if not plan.certificate.collectives:
        return '<p class="soft">None.</p>'
    rows = "".join(
        f"<tr><td>{escape(kind.replace('_', '-'))}</td>"
        + "".join(
            f'<td class="num">{escape(text)}</td>'
            for text in (
                str(count.count),
                bytes_text(count.bytes),
                bytes_text(count.ring_bytes_per_device),
                time_text(count.cost_us),
            )
        )
        + "</tr>"
        for kind, count in plan.certificate.collectives.items()
    )
    heads = ("count", "bytes", "ring bytes per device", "time")
    head = "<th></th>" + "".join(f'<th class="num">{head}</th>' for head in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
