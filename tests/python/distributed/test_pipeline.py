"""Steps in stages on real Gloo processes against the same step on one device."""

import pytest
import torch
from tests.python.distributed.process_group import run_ranks
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import PipelineOptions, StageOptions
from shardwright.pipeline.planning import plan_options
from shardwright.planning import SearchRequest


def _train(rank, world, target, options, dtype, settings=None):
    step, args = getattr(zoo, target)(dtype=dtype, **(settings or {}))
    _, reference_args = getattr(zoo, target)(dtype=dtype, **(settings or {}))
    parallel = sw.parallelize(cluster=slow_compute(world), timeout=60, **options)(step)
    losses = [(parallel(*args).item(), step(*reference_args).item()) for _ in range(3)]
    expected = reference_args[0].state_dict()
    errors = {}
    for name, value in args[0].state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        errors[name] = float((whole - expected[name]).abs().max())
    held = {n for n, p in args[0].named_parameters() if p.device.type != "meta"}
    stages = [
        {spec.name for spec in graph.inputs if spec.kind == "parameter"}
        for graph in parallel.pipeline.stages.graphs
    ]
    own = parallel.pipeline.stages_of(rank)
    assert held == set().union(*(stages[stage] for stage in own))
    assert set().union(*stages) == {n for n, _ in args[0].named_parameters()}
    return losses, errors, own


def _names(target, settings=None):
    _, args = getattr(zoo, target)(**(settings or {}))
    return set(args[0].state_dict())


def _check(results, names, loss_error, error):
    seen = set()
    for losses, errors, _ in results:
        assert all(abs(ours - theirs) <= loss_error * abs(theirs) for ours, theirs in losses)
        assert max(errors.values()) <= error
        seen |= set(errors)
    assert seen == names


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, {"num_stages": 2, "num_microbatches": 4}),
        (3, {"num_stages": 2, "num_microbatches": 2, "stage_ranks": (1, 2)}),
        (4, {"num_stages": 2, "num_microbatches": 2, "schedule": "gpipe"}),
        (2, {"num_stages": 2, "num_microbatches": 4, "schedule": "zero_bubble"}),
    ],
    ids=["pp2", "1+2", "pp2x2 gpipe", "pp2 zero_bubble"],
)
def test_integers_with_a_tied_embedding_are_equal_bit_for_bit(world, options):
    results = run_ranks(world, _train, "gpt_integer", options, torch.float32)
    _check(results, _names("gpt_integer"), 0.0, 0.0)
    assert {own for _, _, own in results} == {(0,), (1,)}


INTERLEAVED = {
    "num_stages": 4, "num_microbatches": 4, "schedule": "interleaved_1f1b", "stages_per_rank": 2
}  # fmt: skip


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_two_stages_per_rank_are_equal_bit_for_bit(world):
    settings = {"layers": 4}
    results = run_ranks(world, _train, "gpt_integer", INTERLEAVED, torch.float32, settings)
    _check(results, _names("gpt_integer", settings), 0.0, 0.0)
    assert [own for _, _, own in results] == [(0, 2)] * (world // 2) + [(1, 3)] * (world // 2)


@pytest.mark.distributed
def test_what_stages_of_one_rank_send_each_other_stays_there():
    options = {**INTERLEAVED, "stage_ranks": (2,), "stages_per_rank": 4}
    settings = {"layers": 4}
    results = run_ranks(2, _train, "gpt_integer", options, torch.float32, settings)
    _check(results, _names("gpt_integer", settings), 0.0, 0.0)
    assert [own for _, _, own in results] == [(0, 1, 2, 3)] * 2


@pytest.mark.distributed
@pytest.mark.parametrize(
    "schedule",
    ["zero_bubble", *(pytest.param(s, marks=pytest.mark.slow) for s in ("gpipe", "1f1b"))],
)
def test_four_stages_of_float64_agree_to_rounding(schedule):
    options = {"num_stages": 4, "num_microbatches": 4, "schedule": schedule}
    results = run_ranks(4, _train, "gpt_tiny", options, torch.float64, {"layers": 4})
    # AdamW divides the gradient of a key bias, which is pure rounding, by its own size.
    _check(results, _names("gpt_tiny", {"layers": 4}), 1e-12, 1e-9)
    assert [own for _, _, own in results] == [(0,), (1,), (2,), (3,)]


@pytest.mark.distributed
def test_a_step_in_stages_takes_one_signature():
    assert run_ranks(2, _other_shapes) == ["E529", "E529"]


def _other_shapes(rank, world):
    step, (model, optimizer, inputs, weights) = zoo.mlp_integer()
    parallel = sw.parallelize(
        cluster=slow_compute(world), timeout=20, num_stages=2, num_microbatches=2
    )(step)
    parallel(model, optimizer, inputs, weights)
    try:
        parallel(model, optimizer, inputs[:8], weights[:8])
    except sw.ConfigError as error:
        return error.code
    return ""


@pytest.mark.distributed
def test_a_saved_plan_runs_where_it_places_its_stages(tmp_path):
    """The second stage on the first ranks; every rank sees the plan of all stages."""
    stages = (StageOptions(1, 2, mesh=(1,)), StageOptions(2, 0, "layers.1", mesh=(2,)))
    graph = split_microbatches(capture(*zoo.gpt_integer(dtype=torch.float32)), 4)
    plan = plan_options(graph, PipelineOptions(stages), slow_compute(3), SearchRequest()).plan
    plan.save(tmp_path / "plan.json")
    options = {"plan": str(tmp_path / "plan.json")}
    results = run_ranks(3, _train, "gpt_integer", options, torch.float32)
    _check(results, _names("gpt_integer"), 0.0, 0.0)
    assert [own for _, _, own in results] == [(1,), (1,), (0,)]
    assert run_ranks(3, _plan_time, str(tmp_path / "plan.json")) == [plan.time_us] * 3


def _plan_time(rank, world, path):
    step, args = zoo.gpt_integer(dtype=torch.float32)
    parallel = sw.parallelize(plan=path, timeout=60)(step)
    parallel(*args)
    assert isinstance(parallel.plan, sw.PipelinePlan)
    assert parallel.plan == sw.load_plan(path)
    assert "Pipeline plan" in str(parallel.plan)
    return parallel.plan.time_us
