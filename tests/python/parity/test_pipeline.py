"""Stages on simulated ranks against the eager step on one device, and planted pipeline bugs."""

import functools

import pytest
import torch
from tests.python.parity.clusters import slow_compute
from tests.python.unit.pipeline.test_stages import Skips, _skipping_step
from torch import nn

from shardwright import zoo
from shardwright.pipeline import parity, simulate, stage_steps
from shardwright.pipeline.parity import check_pipeline_parity, run_pipeline_parity


def _parity(target, meshes, count, dtype=torch.float32, settings=None, **options):
    if options.get("schedule") == "interleaved_1f1b":
        options.setdefault("stages_per_rank", 2)
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
        ("gpt_integer", [(2,), (1,)], 4, "interleaved_1f1b", {"layers": 4}),
        ("gpt_integer", [(1,)] * 2, 8, "interleaved_1f1b", {"layers": 4}),
        ("wide_resnet_integer", [(1,), (2,)], 4, "interleaved_1f1b", {}),
    ],
)
def test_integers_agree_bit_for_bit(target, meshes, count, schedule, settings):
    report = _parity(target, meshes, count, settings=settings, schedule=schedule)
    assert {name: error for name, error in report.errors.items() if error != 0} == {}
    assert report.reference == "eager"
    assert any(name.startswith("grad ") for name in report.errors)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zero_bubble"])
@pytest.mark.parametrize(
    ("target", "meshes", "count"),
    [("gpt_tiny", [(1,), (2,)], 4), ("wide_resnet_tiny", [(1,), (2,)], 2)],
)
def test_float64_agrees_to_rounding(target, meshes, count, schedule):
    boundaries = None
    if (target, schedule) == ("gpt_tiny", "interleaved_1f1b"):
        boundaries = ["layers.0.feed_forward", "layers.1", "layers.1.feed_forward"]
    report = _parity(target, meshes, count, torch.float64, schedule=schedule, boundaries=boundaries)
    noise = [name for name in report.errors if name.endswith("attention.qkv.bias")]
    assert max(e for name, e in report.errors.items() if name not in noise) <= 1e-12
    assert max((report.errors[name] for name in noise), default=0.0) <= 1e-8


class Ladder(nn.Module):
    """Two layers down, two up; what the first makes is added before both of the way up."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        kept = torch.tanh(self.layers[0](x))
        x = torch.tanh(self.layers[1](kept))
        x = torch.tanh(self.layers[2](x + kept))
        return torch.tanh(self.layers[3](x + kept))


def _make_skipping(kind):
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return _skipping_step, (model, optimizer, torch.randn(8, 8), torch.randn(8, 8))


def _skip_parity(kind, meshes, schedule, stages_per_rank=1):
    return check_pipeline_parity(
        lambda: _make_skipping(kind), meshes=meshes, num_microbatches=4, schedule=schedule,
        stages_per_rank=stages_per_rank, cluster=slow_compute(sum(m[0] for m in meshes)),
    )  # fmt: skip


@pytest.mark.parametrize("kind", [Skips, Ladder])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_skip_connections_cross_stages(kind, schedule):
    report = _skip_parity(kind, [(1,), (2,), (1,), (1,)], schedule)
    assert report.max_rel_error <= 1e-12


@pytest.mark.parametrize(("meshes", "stages_per_rank"), [([(2,), (3,)], 2), ([(5,)], 4)])
def test_skip_connections_stay_on_ranks_that_have_both_stages(meshes, stages_per_rank):
    report = _skip_parity(Ladder, meshes, "interleaved_1f1b", stages_per_rank)
    assert report.max_rel_error <= 1e-12


def _kept(check):
    """The pipeline that a parity check made, which must be right."""
    found = []

    def keep(make_step, pipeline, **options):
        found.append(pipeline)
        return run_pipeline_parity(make_step, pipeline, **options)

    original = parity.run_pipeline_parity
    parity.run_pipeline_parity = keep
    try:
        assert check().max_rel_error <= 1e-12
    finally:
        parity.run_pipeline_parity = original
    return found[0]


@functools.cache
def _pipeline(schedule):
    """A step, its pipeline on four ranks, planned once, and its dtype.

    A GPT of integers with a tied embedding on two groups of two ranks; for "moves" a network with
    skip connections of which all stages are on the same two ranks.
    """
    if schedule == "moves":
        pipeline = _kept(lambda: _skip_parity(Ladder, [(2,)], "interleaved_1f1b", 4))
        return lambda: _make_skipping(Ladder), pipeline, torch.float64
    layers = 4 if schedule == "interleaved_1f1b" else 2

    def check():
        return _parity(
            "gpt_integer", [(2,), (2,)], 4, settings={"layers": layers}, schedule=schedule
        )

    return lambda: zoo.gpt_integer(layers=layers, dtype=torch.float32), _kept(check), torch.float32


def _run(make, pipeline, dtype):
    return run_pipeline_parity(make, pipeline, steps=3, dtype=dtype).max_rel_error


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


def _weights_of_the_other_stage(monkeypatch):
    """Stage 2 computes with the weights of stage 0, which has the same ranks."""
    load = simulate.PipelineSimulation.load
    seen = {}

    def wrong(self, name, whole):
        seen[name] = whole
        load(self, name, seen[name.replace("layers.2.", "layers.0.")])

    monkeypatch.setattr(simulate.PipelineSimulation, "load", wrong)


def _gradients_of_the_other_stage(transfer, microbatch, value, memory):
    """Stage 0 gets the gradient that stage 2, on the same ranks, got for this microbatch."""
    if transfer.when == "backward":
        memory[transfer.source, microbatch] = value
    return memory[3, microbatch] if (transfer.when, transfer.source) == ("backward", 1) else value


INTERLEAVED_BUGS = {
    "weights of another stage of these ranks": _weights_of_the_other_stage,
    "gradients for another stage of these ranks": _on_send(_gradients_of_the_other_stage),
    "stale activation": _on_send(_stale),
    "tied gradient lost": _on_send(_scaled("update", 0)),
    "one stage's microbatch not computed back": _on_computation(
        lambda part, stage, n: [] if (part, stage, n) == ("I", 2, 1) else [n]
    ),
    "one stage's backward counted twice": _on_computation(
        lambda part, stage, n: [n, n] if (part, stage, n) == ("I", 0, 1) else [n]
    ),
    "one stage's forward of another microbatch": _on_computation(
        lambda part, stage, n: [n - 1] if (part, stage, n) == ("F", 2, 1) else [n]
    ),
}


def _on_move(change):
    """A bug in what stays on the ranks: as `_on_send`."""

    def plant(monkeypatch):
        move = simulate._Queues.move
        memory = {}

        def wrong(self, transfer, microbatch, value):
            value = change(transfer.transfer, microbatch, [v.clone() for v in value], memory)
            return move(self, transfer, microbatch, value)

        monkeypatch.setattr(simulate._Queues, "move", wrong)

    return plant


MOVE_BUGS = {
    "stale activation kept": _on_move(_stale),
    "kept activation lost": _on_move(_lost("forward", 2)),
    "kept gradient lost": _on_move(_lost("backward", 2)),
    "kept gradient scaled": _on_move(_scaled("backward", 4)),
    "kept shards on the wrong ranks": _on_move(_swapped("forward")),
}
ALL_BUGS = {
    "1f1b": BUGS,
    "zero_bubble": ZERO_BUBBLE_BUGS,
    "interleaved_1f1b": INTERLEAVED_BUGS,
    "moves": MOVE_BUGS,
}


@pytest.mark.parametrize(
    ("schedule", "name"), [(schedule, name) for schedule in ALL_BUGS for name in ALL_BUGS[schedule]]
)
def test_planted_bugs_are_caught(schedule, name, monkeypatch):
    pipeline = _pipeline(schedule)
    ALL_BUGS[schedule][name](monkeypatch)
    try:
        error = _run(*pipeline)
    except (KeyError, IndexError, RuntimeError):
        return  # it does not run at all
    assert error > 1e-6


@pytest.mark.parametrize("schedule", ALL_BUGS)
def test_the_pipeline_of_the_planted_bugs_is_right_without_them(schedule):
    assert _run(*_pipeline(schedule)) <= (1e-12 if schedule == "moves" else 0.0)
