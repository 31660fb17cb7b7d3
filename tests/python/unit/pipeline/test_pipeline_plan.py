"""PipelinePlan: what it says, its file, its check, and how stages are placed."""

import copy
import functools
import json
import math
import pickle
import re
from types import SimpleNamespace

import pytest
import torch
from tests.python.parity.clusters import slow_compute

import shardwright as sw
from shardwright import zoo
from shardwright.capture import capture
from shardwright.errors import ConfigError, InfeasibleError, PlanError
from shardwright.pipeline import simulate
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.module_names import module_names
from shardwright.pipeline.options import PipelineOptions, StageOptions
from shardwright.pipeline.parity import run_pipeline_parity
from shardwright.pipeline.pipeline import lower_pipeline
from shardwright.pipeline.planning import plan_options
from shardwright.pipeline.pricing import simulated_step
from shardwright.planning import SearchRequest


@functools.cache
def step_graph(num_microbatches=1):
    return split_microbatches(capture(*zoo.gpt_tiny()), num_microbatches)


@functools.cache
def small_plan():
    """Two stages on 1 + 2 ranks."""
    return sw.plan(
        step_graph(), cluster=slow_compute(3), num_stages=2, num_microbatches=4,
        stage_ranks=(1, 2), stage_boundaries=["layers.1"],
    )  # fmt: skip


def test_the_plan_says_where_every_stage_runs():
    plan = small_plan()
    assert [list(stage.ranks) for stage in plan.stages] == [[0], [1, 2]]
    assert [stage.begin for stage in plan.stages] == ["", "layers.1"]
    assert [math.prod(stage.plan.mesh_shape) for stage in plan.stages] == [1, 2]
    assert plan.num_devices == 3
    # 1F1B: the first of two stages holds two microbatches, the last one.
    assert [stage.microbatches_in_flight for stage in plan.stages] == [2, 1]
    assert plan.graph_hash == step_graph(4).hash()
    assert plan.peak_memory_bytes == max(s.plan.peak_memory_bytes for s in plan.stages)
    assert plan.stage_of("layers.0.feed_forward.up.weight") == 0
    assert plan.stage_of("layers.1.feed_forward.up.weight") == 1
    names = {name for name, _ in zoo.gpt_tiny()[1][0].named_parameters()}
    assert names <= set(plan.inputs)
    assert not {t.value for t in plan.transfers} & set(plan.inputs)


def test_phases_add_up_to_the_cost_of_every_stage():
    for stage in small_plan().stages:
        certificate = stage.plan.certificate
        phases = 4 * (stage.forward_us + stage.backward_us) + stage.update_us
        assert math.isclose(phases, certificate.cost_us, rel_tol=1e-12)
        assert min(stage.forward_us, stage.backward_us, stage.update_us) > 0


def test_the_time_is_that_of_the_schedule_the_updates_and_the_exchanges():
    plan = small_plan()
    first, second = plan.stages
    cost = dict.fromkeys(("forward", "backward", "start"), 0.0)
    for transfer in plan.transfers:
        if transfer.when != "update":
            cost[transfer.when] += transfer.cost_us
    # 1F1B of two stages and four microbatches by hand. Stage 0: F0 F1 B0 F2 B1 F3 B2 B3.
    # Stage 1: F0 B0 F1 B1 F2 B2 F3 B3.
    f0, b0, f1, b1 = first.forward_us, first.backward_us, second.forward_us, second.backward_us
    # Stage 1 waits for the tied embedding.
    free = {0: 0.0, 1: cost["start"], "forward": 0.0, "backward": 0.0}
    arrived = {}

    def compute(stage, kind, n, time):
        start = max(free[stage], arrived.get((stage, kind, n), 0.0))
        free[stage] = start + time
        way = {(0, "F"): "forward", (1, "B"): "backward"}.get((stage, kind))
        if way:
            free[way] = max(free[way], free[stage]) + cost[way]
            arrived[1 - stage, kind, n] = free[way]

    order = ["0F0", "0F1", "1F0", "1B0", "1F1", "1B1", "0B0", "0F2", "0B1", "0F3", "1F2", "1B2",
             "0B2", "1F3", "1B3", "0B3"]  # fmt: skip
    times = {"0F": f0, "0B": b0, "1F": f1, "1B": b1}
    for action in order:
        compute(int(action[0]), action[1], int(action[2]), times[action[:2]])
    simulation = plan.simulation
    to_here = max(free[0], free[1])
    assert math.isclose(simulation.start_us + simulation.pipeline_us, to_here, rel_tol=1e-12)
    # It is there before the first activation.
    assert simulation.start_us == 0 < cost["start"] < f0
    updates = [first.update_us, second.update_us]
    without = max(free[0] + updates[0], free[1] + updates[1])
    assert math.isclose(simulation.update_us, without - to_here, rel_tol=1e-12)
    # Every stage comes to the exchanges when it is done; who sends goes on, who receives waits.
    now, sent = [free[0], free[1]], [0.0, 0.0]
    for transfer in plan.transfers:
        if transfer.when == "update":
            begin = max(now[0], now[1], sent[transfer.source])
            sent[transfer.source] = now[transfer.target] = begin + transfer.cost_us
    time = max(now[0] + updates[0], now[1] + updates[1], *sent)
    assert math.isclose(plan.time_us, time, rel_tol=1e-12)
    parts = (simulation.start_us, simulation.pipeline_us, simulation.update_us)
    assert math.isclose(simulation.exchange_us, time - sum(parts), rel_tol=1e-9)
    assert plan.certificate.lower_bound_us is None
    assert plan.certificate.status == "feasible"
    schedule, timed = plan.simulate()
    assert timed.pipeline_us == to_here
    assert schedule.num_ranks == 2


def test_scalars_of_the_update_go_together():
    """78 norms of gradients between two stages of GPT-1.3B would be 78 messages."""
    pipeline = lower_pipeline(step_graph(4), small_plan())
    scalars = [t for t in pipeline.transfers if t.described.shape == ()]
    ways = {(t.transfer.round, t.transfer.source, t.transfer.target) for t in scalars}
    together = [message for message in pipeline.messages if message[0] in scalars]
    # The norms of one stage's gradients one way, the factor of all gradients the other.
    assert sorted(len(message) for message in together) == [1, len(scalars) - 1]
    assert len(scalars) > 10
    assert len(ways) == len(together)
    assert len(pipeline.messages) == len(pipeline.transfers) - len(scalars) + 2
    for message in together:
        described = [transfer.described for transfer in message]
        steps = message[0].plan.steps
        assert math.isclose(sum(d.cost_us for d in described), message[0].plan.cost_us)
        assert sum(d.bytes for d in described) == sum(s.bytes for s in steps if s.kind != "copy")
        # One message for each rank of the other stage, or a part each and the rest among them.
        assert len(steps) <= 4


def test_what_goes_together_is_sent_at_once(monkeypatch):
    sent = []
    send = simulate._Queues.send

    def note(self, transfer, microbatch, value):
        sent.append(transfer.transfer)
        send(self, transfer, microbatch, value)

    monkeypatch.setattr(simulate._Queues, "send", note)
    pipeline = lower_pipeline(step_graph(4), small_plan())
    report = run_pipeline_parity(zoo.gpt_tiny, pipeline, steps=1, dtype=None)
    assert report.errors["loss"] <= 1e-5
    once = [message[0].transfer for message in pipeline.messages]
    assert [t for t in sent if t.when == "update"] == [t for t in once if t.when == "update"]


def _stage(first_rank, update_us):
    plan = SimpleNamespace(num_microbatches=1)
    return SimpleNamespace(
        plan=plan, first_rank=first_rank, forward_us=1.0, backward_us=1.0, backward_weight_us=0.0,
        update_us=update_us,
    )  # fmt: skip


def _transfer(when, source, target, cost_us):
    return SimpleNamespace(when=when, round=0, source=source, target=target, cost_us=cost_us)


def test_transfers_outside_of_microbatches_overlap_with_what_does_not_wait_for_them():
    stages = [_stage(0, 2.0), _stage(1, 7.0)]
    between = [_transfer("forward", 0, 1, 0.0), _transfer("backward", 1, 0, 0.0)]
    # 0F 0-1, 1F 1-2, 1B 2-3, 0B 3-4; updates until 6 and 10.
    alone = simulated_step("1f1b", stages, between)
    assert (alone.start_us, alone.pipeline_us, alone.update_us, alone.exchange_us) == (0, 4, 6, 0)
    # A parameter arrives while stage 0 computes: nothing waits. At 1.5: stage 1 waits for 0.5.
    early = simulated_step("1f1b", stages, [*between, _transfer("start", 0, 1, 1.0)])
    assert (early.start_us, early.time_us) == (0, 10)
    late = [*between, _transfer("start", 0, 1, 1.5)]
    assert simulated_step("1f1b", stages, late).start_us == 0.5
    # Stage 1 is done at 3.5 and sends; stage 0 receives from 4.5 to 9.5 and updates until 11.5.
    step = simulated_step("1f1b", stages, [*late, _transfer("update", 1, 0, 5.0)])
    assert (step.start_us, step.pipeline_us, step.update_us, step.exchange_us) == (0.5, 4, 6, 1)
    assert step.time_us == 11.5


def test_a_saved_plan_loads_as_the_same_plan_and_the_same_bytes(tmp_path):
    plan = small_plan()
    plan.save(tmp_path / "first.json")
    loaded = sw.PipelinePlan.load(tmp_path / "first.json")
    assert loaded == plan
    assert sw.load_plan(tmp_path / "first.json") == plan
    loaded.save(tmp_path / "second.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert loaded.validate(step_graph()) == plan.certificate
    assert loaded.validate(step_graph(4)) == plan.certificate


def test_a_file_of_either_kind_is_loaded_as_what_it_is(tmp_path):
    plan = small_plan().stages[0].plan
    plan.save(tmp_path / "plan.json")
    assert sw.load_plan(tmp_path / "plan.json") == plan
    with pytest.raises(PlanError) as caught:
        sw.PipelinePlan.load(tmp_path / "plan.json")
    assert caught.value.code == "E322"


def _set(*path):
    *keys, last, value = path

    def change(data):
        for key in keys:
            data = data[key]
        data[last] = value

    return change


def _drop_transfer(data):
    del data["transfers"][0]


def _claim_one_in_flight(data):
    data["stages"][0]["microbatches_in_flight"] = 1
    data["stages"][0]["plan"]["microbatches_in_flight"] = 1


def _scale_time(data):
    data["simulation"]["time_us"] *= 2
    data["certificate"]["time_us"] *= 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_set("version", 2), "E322"),
        (_set("schedule", "dualpipe"), "E321"),
        (_set("stages", []), "E321"),
        (_set("stages", 0, "first_rank", -1), "E321"),
        (_set("stages", 0, "plan", "version", 7), "E322"),
        (_set("stages", 0, "extra", 1), "E321"),
        (_set("transfers", 0, "cost_us", float("1e40")), "E321"),
        (_set("certificate", "status", "perfect"), "E321"),
        (_set("certificate", "status", "optimal"), "E323"),
        (_set("certificate", "lower_bound_us", 1.0), "E321"),
        (_set("stages", 1, "first_rank", 0), "E323"),
        (_set("stages", 1, "first_rank", 2), "E323"),
        (_set("stages", 1, "begin", ""), "E323"),
        (_set("stages", 0, "microbatches_in_flight", 5), "E323"),
        (_set("stages", 0, "microbatches_in_flight", 1), "E323"),
        (_set("stages", 0, "plan", "microbatches_in_flight", 1), "E323"),
        (_set("num_microbatches", 8), "E323"),
        (_set("transfers", 0, "source", 7), "E323"),
        (_set("transfers", 0, "cost_us", 1.0), "E323"),
        (_set("transfers", 0, "host_bytes", 2**40), "E323"),
        (_scale_time, "E323"),
    ],
)
def test_broken_files_are_refused(change, code):
    data = copy.deepcopy(small_plan().to_dict())
    change(data)
    with pytest.raises(PlanError) as caught:
        sw.PipelinePlan.from_dict(json.loads(json.dumps(data)))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "change",
    [
        _set("transfers", 0, "source_spec", "R"),
        _set("transfers", 0, "bytes", 2**40),
        _claim_one_in_flight,
    ],
)
def test_a_plan_that_claims_something_else_fails_its_check(change):
    data = copy.deepcopy(small_plan().to_dict())
    change(data)
    plan = sw.PipelinePlan.from_dict(json.loads(json.dumps(data)))
    with pytest.raises(PlanError) as caught:
        plan.validate(step_graph())
    assert caught.value.code == "E324"


def test_a_plan_of_another_step_fails_its_check():
    with pytest.raises(PlanError) as caught:
        small_plan().validate(capture(*zoo.gpt_tiny(layers=3)))
    assert caught.value.code == "E325"


def test_microbatches_are_cut_without_stages_too():
    plan = sw.plan(step_graph(), mesh=(2,), num_microbatches=4)
    assert isinstance(plan, sw.Plan)
    assert plan.graph_hash == step_graph(4).hash()
    assert plan.num_microbatches == 4
    again = sw.plan(step_graph(4), mesh=(2,))
    assert again == plan
    plan.validate(step_graph())
    with pytest.raises(ConfigError) as caught:
        sw.plan(step_graph(4), mesh=(2,), num_microbatches=2)
    assert caught.value.code == "E522"
    with pytest.raises(ConfigError) as caught:
        sw.plan(step_graph(), mesh=(2,), num_microbatches=3)
    assert caught.value.code == "E526"


def _options(first_ranks=(0, 1), **second):
    counts = (1, 2)
    return PipelineOptions(
        (
            StageOptions(counts[0], first_ranks[0]),
            StageOptions(counts[1], first_ranks[1], "layers.1", mesh=(2,), **second),
        )
    )


def _planned(options, num_microbatches=4):
    return plan_options(step_graph(num_microbatches), options, slow_compute(3), SearchRequest())


def test_stages_run_where_they_are_placed():
    """The second stage on the first ranks: results are those of one device."""
    options = _options(first_ranks=(2, 0))
    graph = split_microbatches(capture(*zoo.gpt_integer(dtype=torch.float32)), 4)
    pipeline = plan_options(graph, options, slow_compute(3), SearchRequest())
    assert [list(pipeline.ranks_of(s)) for s in (0, 1)] == [[2], [0, 1]]
    assert [pipeline.stages_of(rank) for rank in range(3)] == [(1,), (1,), (0,)]
    report = run_pipeline_parity(
        lambda: zoo.gpt_integer(dtype=torch.float32), pipeline, steps=2, dtype=torch.float32
    )
    assert report.max_rel_error == 0.0
    again = lower_pipeline(graph, sw.PipelinePlan.from_dict(pipeline.plan.to_dict()))
    assert again.fingerprint() == pipeline.fingerprint()


@pytest.mark.parametrize("spec", ["R R R", "S0 R R", "R S0 R"])
def test_specs_at_a_boundary_can_be_demanded(spec):
    entered = _planned(_options(entry=spec)).plan
    (forward,) = [t for t in entered.transfers if t.when == "forward"]
    assert forward.target_spec == spec
    stages = list(_options().stages[::-1])
    # The other way round: two devices send to one.
    options = PipelineOptions(
        (
            StageOptions(2, 0, mesh=(2,), exit=spec),
            StageOptions(1, 2, stages[0].begin),
        )
    )
    (forward,) = [t for t in _planned(options).plan.transfers if t.when == "forward"]
    assert forward.source_spec == spec


def test_no_spec_can_be_demanded_where_nothing_passes():
    options = PipelineOptions(
        (StageOptions(1, 0, mesh=(1,), entry="R R R"), *_options().stages[1:])
    )
    with pytest.raises(ConfigError) as caught:
        _planned(options)
    assert caught.value.code == "E543"


def test_a_stage_that_does_not_fit_is_named():
    peak = small_plan().stages[1].plan.peak_memory_bytes
    with pytest.raises(InfeasibleError) as caught:
        sw.plan(
            step_graph(), cluster=slow_compute(2), num_stages=2, num_microbatches=4,
            memory_limit=peak // 8, stage_boundaries=["layers.1"],
        )  # fmt: skip
    assert caught.value.code == "E206"
    assert "stage 0" in str(caught.value)
    assert "layers.0" in str(caught.value)
    assert re.search(r"\d KiB", str(caught.value))


def test_forced_specs_go_to_the_stage_that_has_the_input():
    plan = sw.plan(
        step_graph(), cluster=slow_compute(4), num_stages=2, num_microbatches=2,
        stage_meshes=[(2,), (2,)],
        stage_boundaries=["layers.1"], forced={"layers.1.feed_forward.up.weight": "S0 R"},
    )  # fmt: skip
    assert plan.inputs["layers.1.feed_forward.up.weight"].text == "S0 R"
    with pytest.raises(ConfigError) as caught:
        sw.plan(
            step_graph(), cluster=slow_compute(4), num_stages=2, num_microbatches=2,
            stage_meshes=[(2,), (2,)], forced={"layers.7.*": "S0 R"},
        )  # fmt: skip
    assert caught.value.code == "E523"


def test_a_pipeline_of_a_plan_can_be_explained():
    explanation = small_plan().explain("layers.1.feed_forward.up.weight", time_limit_s=10)
    assert explanation.alternatives
    with pytest.raises(ConfigError) as caught:
        small_plan().explain("layers.9.weight")
    assert caught.value.code == "E542"


def test_module_names_are_joined():
    paths = [
        "embedding",
        "layers.0.feed_forward.up",
        "layers.1.norm",
        "layers.2",
        "head",
        "",
        "head",
    ]
    assert module_names(paths) == "embedding, layers.0-2, head"
    assert module_names(["encoder.3", "decoder.0.1.up"]) == "encoder.3, decoder.0"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"num_stages": 2, "num_microbatches": 2}, "E528"),
        ({"num_microbatches": 2}, "E528"),
        ({"num_stages": 3}, "E528"),
    ],
)
def test_a_given_plan_brings_its_own_stages(options, code):
    single = sw.plan(step_graph(), mesh=(2,))
    given = single if options.get("num_stages") == 2 else small_plan()
    with pytest.raises(ConfigError) as caught:
        sw.parallelize(plan=given, **options)(lambda: None)
    assert caught.value.code == code
