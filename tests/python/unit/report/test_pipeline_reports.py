"""Reports of plans in stages: text, page, figures, differences, timeline and trace."""

import functools
import json

import pytest
from tests.python.parity.clusters import slow_compute
from tests.python.unit.report.test_html import parsed

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.report.difference import difference_lines
from shardwright.report.numbers import pipeline_numbers
from shardwright.report.of_plan import report_numbers, report_page, report_text
from shardwright.report.pipeline_facts import transfer_rows
from shardwright.report.trace import chrome_trace
from shardwright.report.units import bytes_text, time_text


@functools.cache
def plan(schedule="1f1b"):
    return sw.plan(
        capture(*zoo.gpt_tiny()), cluster=slow_compute(3), num_stages=2, num_microbatches=4,
        stage_ranks=(1, 2), stage_boundaries=["layers.1"], schedule=schedule,
    )  # fmt: skip


def test_text_has_stages_transfers_time_and_every_stages_report():
    text = str(plan())
    for word in ("Pipeline plan", "2 stages, 1f1b, 4 microbatches, 3 devices", "Bubble", "layers.1",
                 "Transfers between stages", "token_embedding.weight", "1 x 2"):  # fmt: skip
        assert word in text
    for stage in plan().stages:
        assert time_text(stage.forward_us) in text
        assert bytes_text(stage.plan.peak_memory_bytes) in text
        assert stage.plan.graph_hash[:12] in text
    assert time_text(plan().time_us) in text
    assert max(map(len, report_text(plan(), width=100, color=False).splitlines())) <= 100


def test_page_is_well_formed_and_shows_the_timeline():
    html = report_page(plan())
    page = parsed(html)
    assert page.tags.count("details") == 2
    for word in ("stage 0", "stage 1", "bubble", "token_embedding.weight", "Transfers"):
        assert word in page.text
    # Four forwards and four backwards of each stage, narrow ones drawn together or apart.
    assert "0F0" in html
    assert "<script" not in html
    fragment = plan()._repr_html_()
    assert fragment in html
    assert "html" not in parsed(fragment).tags


def test_numbers_are_json_and_those_of_the_plan():
    numbers = json.loads(json.dumps(report_numbers(plan()), allow_nan=False))
    assert numbers == json.loads(json.dumps(pipeline_numbers(plan())))
    assert numbers["time_us"] == plan().time_us
    assert numbers["lower_bound_us"] is None
    assert [stage["ranks"] for stage in numbers["stages"]] == [[0], [1, 2]]
    assert len(numbers["transfers"]) == len(plan().transfers)


def test_rows_of_transfers_hold_every_transfer_once():
    listed = [transfer for row in transfer_rows(plan()) for transfer in row.transfers]
    assert sorted(listed, key=str) == sorted(plan().transfers, key=str)
    times = {row.transfers[0].when: row.times for row in transfer_rows(plan())}
    assert times == {"start": 1, "forward": 4, "backward": 4, "update": 1}


def test_differences_name_stage_and_figure():
    assert difference_lines(plan(), plan()) == []
    other = sw.plan(
        capture(*zoo.gpt_tiny()), cluster=slow_compute(3), num_stages=2, num_microbatches=2,
        stage_ranks=(2, 1), stage_boundaries=["layers.1"],
    )  # fmt: skip
    lines = difference_lines(plan(), other)
    assert "microbatches: 4 -> 2" in lines
    assert any(line.startswith("stage 0: mesh: 1 -> 2") for line in lines)
    assert any(line.startswith("stage 1: first rank: 1 -> 2") for line in lines)
    mixed = difference_lines(plan(), plan().stages[0].plan)
    assert "stages: 2 -> 1" in mixed


def test_the_trace_has_every_computation():
    events = chrome_trace(*plan().simulate())["traceEvents"]
    names = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 0]
    assert sorted(names) == sorted(f"{s}{k}{n}" for s in (0, 1) for k in "FB" for n in range(4))


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble"])
def test_other_schedules_are_priced_and_shown(schedule):
    other = plan(schedule)
    assert schedule in str(other)
    assert other.validate(capture(*zoo.gpt_tiny())) == other.certificate
    assert parsed(report_page(other)).open == []


def test_zero_bubble_takes_backward_apart():
    """A linear layer's two gradients have as many FLOPs each; attention's are all of inputs."""
    plain, apart = plan(), plan("zero_bubble")
    for one, other in zip(plain.stages, apart.stages, strict=True):
        assert one.backward_weight_us == 0
        assert 0 < other.backward_weight_us <= other.backward_us
    # The first stage sends no gradient: all of its backward can wait.
    first, last = apart.stages
    assert first.backward_weight_us == pytest.approx(first.backward_us)
    assert last.backward_weight_us < 0.7 * last.backward_us
