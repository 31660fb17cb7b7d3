"""Microbatches on simulated meshes against the eager step on the whole batch, and planted bugs."""

import math

import pytest
import torch
from tests.python.parity.clusters import slow_compute

from shardwright import forced, zoo
from shardwright.capture import capture
from shardwright.lowering.check import check_program
from shardwright.lowering.emitted import lower
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.planning import plan as make_plan
from shardwright.runtime import section_loop, simulate
from shardwright.testing import check_parity


def _parity(target, mesh, count, dtype=torch.float32, **options):
    return check_parity(
        lambda: getattr(zoo, target)(dtype=dtype),
        mesh=mesh,
        dtype=dtype,
        num_microbatches=count,
        cluster=slow_compute(math.prod(mesh)),
        **options,
    )


@pytest.mark.parametrize(
    ("target", "mesh", "count"),
    [
        ("mlp_integer", (2, 2), 4),
        ("gpt_integer", (2,), 4),
        ("gpt_integer", (2, 2), 2),
        ("wide_resnet_integer", (2, 2), 2),
    ],
)
def test_integers_agree_bit_for_bit(target, mesh, count):
    report = _parity(target, mesh, count)
    assert {name: error for name, error in report.errors.items() if error != 0} == {}
    assert report.reference == "eager"
    assert report.collectives


@pytest.mark.parametrize(("target", "mesh"), [("gpt_tiny", (2,)), ("wide_resnet_tiny", (2,))])
def test_float64_agrees_to_rounding(target, mesh):
    report = _parity(target, mesh, 2, torch.float64)
    noise = [name for name in report.errors if name.endswith("attention.qkv.bias")]
    assert max(e for name, e in report.errors.items() if name not in noise) <= 1e-12
    assert max((report.errors[name] for name in noise), default=0.0) <= 1e-8


def _data_parallel(count):
    step, args = zoo.mlp_integer(batch_size=1024)
    graph = split_microbatches(capture(step, args), count)
    plan = make_plan(
        graph,
        mesh=(2,),
        cluster=slow_compute(2),
        forced=forced.data_parallel(graph, (2,)),
    )
    return graph, plan


def test_gradients_are_reduced_once_per_step():
    graph, plan = _data_parallel(4)
    program = lower(graph, plan)
    assert plan.num_microbatches == 4
    phases = {program.table.instructions[site.instruction].phase for site in program.collectives}
    assert phases == {"update"}
    parts = program.sections[: program.num_repeated]
    assert [section.phase for section in parts] == ["forward", "backward"]
    # Six gradients and the loss.
    assert sum(len(section.accumulates) for section in parts) == 7


def test_the_static_checker_proves_programs_in_microbatches():
    for target in ("gpt_tiny", "wide_resnet_tiny"):
        graph = split_microbatches(capture(*getattr(zoo, target)()), 2)
        report = check_program(lower(graph, make_plan(graph, mesh=(2,), cluster=slow_compute(2))))
        assert report.unknown == ()


def test_activations_need_less_memory_and_sums_are_counted():
    step, args = zoo.mlp_tiny(batch_size=512)
    captured = capture(step, args)
    peaks = []
    for count in (1, 8):
        graph = split_microbatches(captured, count)
        peaks.append(make_plan(graph, mesh=(1,)).certificate.at_peak)
    assert peaks[1].activations < peaks[0].activations / 4
    gradients = sum(
        s.meta.numel() * s.meta.element_size() for s in captured.inputs if s.kind == "parameter"
    )
    assert peaks[1].gradients >= gradients


def _replaced(monkeypatch, name, make):
    monkeypatch.setattr(section_loop, name, make(getattr(section_loop, name)))
    monkeypatch.setattr(simulate, name, getattr(section_loop, name))


def _lose_first(run_sections):
    def run(program, inputs, runner):
        return run_sections(program, inputs[1:], runner)

    return run


def _repeat_last(run_sections):
    def run(program, inputs, runner):
        return run_sections(program, [*inputs[:-1], inputs[0]], runner)

    return run


def _count_twice(run_sections):
    def run(program, inputs, runner):
        return run_sections(program, [*inputs, inputs[-1]], runner)

    return run


def _forget_sums(run_sections):
    """Each microbatch begins its sums anew: only the last one counts."""

    def run(program, inputs, runner):
        def forgetful(number, values):
            accumulates = program.sections[number].accumulates
            if number < program.num_repeated and accumulates:
                values[-len(accumulates) :] = [runner.zeros(ref) for ref in accumulates]
            return runner.run(number, values)

        changed = section_loop.SectionRunner(forgetful, runner.zeros, runner.join)
        return run_sections(program, inputs, changed)

    return run


def _begin_with_ones(run_sections):
    def run(program, inputs, runner):
        def ones(ref):
            return [part + 1 for part in runner.zeros(ref)]

        return run_sections(
            program, inputs, section_loop.SectionRunner(runner.run, ones, runner.join)
        )

    return run


@pytest.mark.parametrize(
    "bug", [_lose_first, _repeat_last, _count_twice, _forget_sums, _begin_with_ones]
)
def test_planted_bugs_are_caught(bug, monkeypatch):
    assert _parity("mlp_integer", (2,), 4).max_rel_error == 0.0
    _replaced(monkeypatch, "run_sections", bug)
    assert _parity("mlp_integer", (2,), 4).max_rel_error > 1e-3
