"""Simulated schedules as a picture and as a Chrome trace."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import shardwright as sw
from shardwright._core import Schedule, Simulation, make_schedule, simulate_schedule
from shardwright.report.timeline import timeline_legend, timeline_picture, timeline_title
from shardwright.report.trace import chrome_trace, write_chrome_trace


def simulated(kind: str, ranks: int, microbatches: int) -> tuple[Schedule, Simulation]:
    schedule = make_schedule(kind, num_ranks=ranks, num_microbatches=microbatches)
    times = [1000.0] * ranks
    simulation = simulate_schedule(
        schedule,
        forward_us=times,
        backward_input_us=times,
        backward_weight_us=times,
        edge_forward_us=[100.0] * (ranks - 1),
        edge_backward_us=[100.0] * (ranks - 1),
    )
    return schedule, simulation


def test_trace_has_every_action_once_at_its_time(tmp_path: Path) -> None:
    schedule, simulation = simulated("zero_bubble", 3, 4)
    write_chrome_trace(tmp_path / "trace.json", schedule, simulation)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == chrome_trace(schedule, simulation)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    # 3 stages x 4 microbatches x (F, I, W), and 2 edges x 4 microbatches x 2 directions
    assert len(complete) == 36 + 16
    assert len({(event["pid"], event["name"]) for event in complete}) == len(complete)
    first = next(event for event in complete if event["name"] == "1F0")
    assert (first["pid"], first["tid"], first["ts"], first["dur"]) == (1, 0, 1100.0, 1000.0)
    arrows = [event["ph"] for event in trace["traceEvents"] if event["ph"] in "sf"]
    assert sorted(arrows) == ["f"] * 16 + ["s"] * 16
    # On one thread nothing overlaps.
    threads: dict[tuple[int, int], float] = {}
    for event in sorted(complete, key=lambda event: event["ts"]):
        thread = (event["pid"], event["tid"])
        assert event["ts"] >= threads.get(thread, 0.0) - 1e-9
        threads[thread] = event["ts"] + event["dur"]


def test_picture_has_one_block_per_computation() -> None:
    schedule, simulation = simulated("1f1b", 4, 6)
    svg = ET.fromstring(timeline_picture(schedule, simulation))
    blocks = [rect for rect in svg.iter("rect") if rect.get("class") != "empty"]
    assert len(blocks) == 4 * 6 * 2
    assert "4 ranks, 4 stages, 6 microbatches" in timeline_title(schedule, simulation)
    assert "forward" in timeline_legend(simulation)


def test_picture_of_many_microbatches_stays_small() -> None:
    schedule, simulation = simulated("1f1b", 16, 1024)
    text = timeline_picture(schedule, simulation)
    assert len(text) < 200_000
    ET.fromstring(text)


def test_times_of_another_number_are_refused() -> None:
    schedule = make_schedule("1f1b", num_ranks=2, num_microbatches=2)
    with pytest.raises(sw.ConfigError, match="E554"):
        simulate_schedule(
            schedule, forward_us=[1.0], backward_input_us=[1.0], backward_weight_us=[1.0]
        )
