"""Stages on simulated ranks against the eager step on one device, and planted pipeline bugs."""

import functools

import pytest
import torch
from tests.python.parity.clusters import slow_compute
from tests.python.unit.pipeline.test_stages import Skips, _skipping_step

from shardwright import zoo
from shardwright.pipeline import parity, simulate, stage_steps
from shardwright.pipeline.parity import check_pipeline_parity, run_pipeline_parity


def _parity(target, meshes, count, dtype=torch.float32, settings=None, **options):
    num_devices = sum(functools.reduce(lambda a, b: a * b, mesh) for mesh in meshes)
    return check_pipeline_parity(
        lambda: getattr(zoo, target)(dtype=dtype, **(settings or {})),
        meshes=meshes,
        num_microbatches=count,
        dtype=dtype,
        cluster=slow_compute(num_devices),
        **options,
    )


@pytest.mark.parametrize(
    ("target", "meshes", "count", "schedule", "settings"),
    [
        ("mlp_integer", [(1,), (1,)], 4, "gpipe", {}),
        ("mlp_integer", [(2,), (1,)], 4, "1f1b", {}),
        ("mlp_integer", [(1,), (1,), (2,)], 8, "1f1b", {}),
        ("gpt_integer", [(1,), (1,)], 4, "1f1b", {}),
        ("gpt_integer", [(1,), (1,)], 1, "1f1b", {}),
        ("gpt_integer", [(2,), (2,)], 2, "1f1b", {}),
        ("gpt_integer", [(1,)] * 4, 4, "gpipe", {"layers": 4}),
        ("wide_resnet_integer", [(2,), (1,)], 4, "gpipe", {}),
        ("gpt_integer", [(2,), (1,)], 4, "zero_bubble", {}),
        ("gpt_integer", [(1,)] * 4, 8, "zero_bubble", {"layers": 4}),
        ("wide_resnet_integer", [(1,), (2,)], 4, "zero_bubble", {}),
    ],
)
def test_integers_agree_bit_for_bit(target, meshes, count, schedule, settings):
    report = _parity(target, meshes, count, settings=settings, schedule=schedule)
    assert {name: error for name, error in report.errors.items() if error != 0} == {}
    assert report.reference == "eager"
    assert any(name.startswith("grad ") for name in report.errors)


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
@pytest.mark.parametrize(
    ("target", "meshes", "count"),
    [("gpt_tiny", [(1,), (2,)], 4), ("wide_resnet_tiny", [(1,), (2,)], 2)],
)
def test_float64_agrees_to_rounding(target, meshes, count, schedule):
    report = _parity(target, meshes, count, torch.float64, schedule=schedule)
    noise = [name for name in report.errors if name.endswith("attention.qkv.bias")]
    assert max(e for name, e in report.errors.items() if name not in noise) <= 1e-12
    assert max((report.errors[name] for name in noise), default=0.0) <= 1e-8


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_skip_connections_cross_stages(schedule):
    def make():
        torch.manual_seed(0)
        model = Skips()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return _skipping_step, (model, optimizer, torch.randn(8, 8), torch.randn(8, 8))

    report = check_pipeline_parity(
        make, meshes=[(1,), (2,), (1,), (1,)], num_microbatches=4, schedule=schedule,
        cluster=slow_compute(5),
    )  # fmt: skip
    assert report.max_rel_error <= 1e-12


@functools.cache
def _pipeline(schedule):
    """A GPT of integers with a tied embedding in two stages of two ranks, planned once."""
    found = []

    def keep(make_step, pipeline, **options):
        found.append(pipeline)
        return run_pipeline_parity(make_step, pipeline, **options)

    original = parity.run_pipeline_parity
    parity.run_pipeline_parity = keep
    try:
        report = _parity("gpt_integer", [(2,), (2,)], 4, schedule=schedule)
    finally:
        parity.run_pipeline_parity = original
    assert report.max_rel_error == 0.0
    return found[0]


def _run(pipeline):
    report = run_pipeline_parity(
        lambda: zoo.gpt_integer(dtype=torch.float32), pipeline, steps=3, dtype=torch.float32
    )
    return report.max_rel_error


def _on_send(change):
    """A bug in what is sent: `change(transfer, microbatch, value, memory)` gives what arrives."""

    def plant(monkeypatch):
        send = simulate._Queues.send
        memory = {}

        def wrong(self, transfer, microbatch, value):
            value = change(transfer.transfer, microbatch, [v.clone() for v in value], memory)
            send(self, transfer, microbatch, value)

        monkeypatch.setattr(simulate._Queues, "send", wrong)

    return plant


def _on_computation(change):
    """A bug in what is computed: `change(part, stage, microbatch)` gives the microbatches."""

    def plant(monkeypatch):
        compute = stage_steps.StageSteps._compute

        def wrong(self, stage, part, microbatch):
            step = self._runs[stage]
            run = step.run

            def changed(number, microbatch):
                for other in change(part, stage, microbatch):
                    run(number, other)

            step.run = changed
            try:
                compute(self, stage, part, microbatch)
            finally:
                step.run = run

        monkeypatch.setattr(stage_steps.StageSteps, "_compute", wrong)

    return plant


def _stale(transfer, microbatch, value, memory):
    previous = memory.get(transfer, value)
    memory[transfer] = value
    return previous if transfer.when == "forward" else value


def _stale_parameter(transfer, microbatch, value, memory):
    return memory.setdefault(transfer, value) if transfer.when == "start" else value


def _scaled(when, factor):
    def change(transfer, microbatch, value, memory):
        return [v * factor for v in value] if transfer.when == when else value

    return change


def _swapped(when):
    def change(transfer, microbatch, value, memory):
        return value[::-1] if transfer.when == when else value

    return change


def _lost(when, microbatch_lost):
    def change(transfer, microbatch, value, memory):
        lost = transfer.when == when and microbatch == microbatch_lost
        return [v * 0 for v in value] if lost else value

    return change


BUGS = {
    "stale activation": _on_send(_stale),
    "stale tied weight": _on_send(_stale_parameter),
    "gradient scaled by the microbatches": _on_send(_scaled("backward", 4)),
    "gradient averaged over microbatches": _on_send(_scaled("backward", 0.25)),
    "activation scaled": _on_send(_scaled("forward", 2)),
    "tied gradient twice": _on_send(_scaled("update", 2)),
    "tied gradient lost": _on_send(_scaled("update", 0)),
    "gradient with the wrong sign": _on_send(_scaled("backward", -1)),
    "activations to the wrong ranks": _on_send(_swapped("forward")),
    "gradients to the wrong ranks": _on_send(_swapped("backward")),
    "first microbatch lost on the way": _on_send(_lost("forward", 0)),
    "last gradient lost on the way": _on_send(_lost("backward", 3)),
    "last microbatch not computed back": _on_computation(
        lambda part, stage, n: [] if (part, stage, n) == ("I", 1, 3) else [n]
    ),
    "backward counted twice": _on_computation(
        lambda part, stage, n: [n, n] if (part, stage, n) == ("I", 0, 1) else [n]
    ),
}


def _saved_values_of_another(monkeypatch):
    """Weight gradients of microbatch 2 in stage 1, which wait for their turn until 3 is back."""
    compute = stage_steps.StageSteps._compute

    def wrong(self, stage, part, microbatch):
        if (part, stage, microbatch) == ("W", 1, 2):
            mine, other = self._runs[1]._made[2:]
            forward = self._pipeline.programs[1].sections[0].gives
            mine.update({ref: other[ref] for ref in forward if ref in mine and ref in other})
        compute(self, stage, part, microbatch)

    monkeypatch.setattr(stage_steps.StageSteps, "_compute", wrong)


def _dropped_too_early(monkeypatch):
    """What a microbatch saved is let go when its gradients are sent."""
    compute = stage_steps.StageSteps._compute

    def wrong(self, stage, part, microbatch):
        compute(self, stage, part, microbatch)
        if part == "I":
            self._runs[stage].leave(microbatch)

    monkeypatch.setattr(stage_steps.StageSteps, "_compute", wrong)


ZERO_BUBBLE_BUGS = {
    "weight gradients of a microbatch lost": _on_computation(
        lambda part, stage, n: [] if (part, stage, n) == ("W", 1, 2) else [n]
    ),
    "weight gradients of a microbatch twice": _on_computation(
        lambda part, stage, n: [n, n] if (part, stage, n) == ("W", 1, 2) else [n]
    ),
    "weight gradients of one microbatch for another": _on_computation(
        lambda part, stage, n: [3] if (part, stage, n) == ("W", 1, 2) else [n]
    ),
    "weight gradients from what another microbatch saved": _saved_values_of_another,
    "saved values dropped before the weight gradients": _dropped_too_early,
    "gradients of a microbatch not computed": _on_computation(
        lambda part, stage, n: [] if (part, stage, n) == ("I", 1, 3) else [n]
    ),
    "stale activation": _on_send(_stale),
    "gradients to the wrong ranks": _on_send(_swapped("backward")),
}


@pytest.mark.parametrize(
    ("schedule", "name"),
    [("1f1b", name) for name in BUGS] + [("zero_bubble", name) for name in ZERO_BUBBLE_BUGS],
)
def test_planted_bugs_are_caught(schedule, name, monkeypatch):
    pipeline = _pipeline(schedule)
    (BUGS if schedule == "1f1b" else ZERO_BUBBLE_BUGS)[name](monkeypatch)
    try:
        error = _run(pipeline)
    except (KeyError, IndexError, RuntimeError):
        return  # it does not run at all
    assert error > 1e-6


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_the_pipeline_of_the_planted_bugs_is_right_without_them(schedule):
    assert _run(_pipeline(schedule)) == 0.0
