"""The search for stages and microbatches of whole steps."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch

import shardwright as sw
from shardwright import _core, zoo
from shardwright.capture import capture
from shardwright.errors import ConfigError, InfeasibleError, PlanError
from shardwright.pipeline import planning
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import PipelineOptions, StageConstraints, even_stages
from shardwright.pipeline.planning import plan_options
from shardwright.pipeline.search import SearchedMemory, can_search, search_stages
from shardwright.planning import SearchRequest


def _hosts(count, per_host, bandwidth=1000.0):
    """Hosts that are fast inside, with so many bytes per microsecond between them.

    Arithmetic is slow, so that small models keep all devices busy.
    """
    cluster = sw.Cluster.preset("p3.16xlarge", nodes=count, devices_per_host=per_host)
    link = dataclasses.replace(cluster.inter_host, bandwidth_bytes_per_us=bandwidth)
    slow = {dtype: flops / 50 for dtype, flops in cluster.peak_flops_per_us.items()}
    return dataclasses.replace(cluster, inter_host=link, peak_flops_per_us=slow)


def _gpt(layers=4, batch_size=32, count=8):
    step, args = zoo.gpt(
        hidden=512, layers=layers, heads=8, vocab=1024, batch_size=batch_size, tied=False
    )
    return split_microbatches(capture(step, args), count)


@pytest.fixture(scope="module")
def graph():
    return _gpt()


def _search(graph, cluster, num_stages, limit=None):
    request = SearchRequest(memory_limit_bytes=limit)
    return search_stages(graph, cluster, StageConstraints(num_stages), request)


def test_slow_links_between_hosts_become_boundaries_of_stages():
    found = _search(_gpt(count=16), _hosts(2, 4, 400.0), None)
    assert [stage.num_devices for stage in found.stages] == [4, 4]
    assert sorted(stage.first_rank for stage in found.stages) == [0, 4]
    assert found.claim.lower_bound_us == found.claim.model_time_us


def test_fast_links_need_no_stages(graph):
    assert len(_search(graph, _hosts(1, 4), None).stages) == 1


def test_any_number_of_stages_is_as_good_as_the_best_number(graph):
    cluster = _hosts(2, 2)
    times = {n: _search(graph, cluster, n).claim.model_time_us for n in (1, 2, 3, 4)}
    best = _search(graph, cluster, None)
    assert best.claim.model_time_us == min(times.values())
    assert times[len(best.stages)] == min(times.values())


def test_stages_cover_layers_and_devices(graph):
    for num_stages in (2, 3, 4):
        stages = _search(graph, _hosts(2, 2), num_stages).stages
        assert len(stages) == num_stages
        ranks = sorted((s.first_rank, s.first_rank + s.num_devices) for s in stages)
        assert ranks[0][0] == 0
        assert ranks[-1][1] == 4
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranks))
        assert [stage.begin != "" for stage in stages] == [False] + [True] * (num_stages - 1)


def test_the_same_step_gives_the_same_stages(graph):
    cluster = _hosts(2, 2)
    assert _search(graph, cluster, None) == _search(graph, cluster, None)


def test_less_memory_never_makes_faster_stages(graph):
    cluster = _hosts(2, 2)
    limits = [None, 2**29, 2**28, 150 * 2**20]
    times = [_search(graph, cluster, None, limit).claim.model_time_us for limit in limits]
    assert times == sorted(times)
    with pytest.raises(InfeasibleError) as raised:
        _search(graph, cluster, None, 2**20)
    assert raised.value.code == "E205"


def test_stages_that_fit_by_recomputing_recompute(graph):
    cluster = _hosts(2, 1)
    freely = _search(graph, cluster, 2)
    assert not any(stage.recompute for stage in freely.stages)
    tight = _search(graph, cluster, 2, 350 * 2**20)
    assert any(stage.recompute for stage in tight.stages)
    assert tight.claim.model_time_us > freely.claim.model_time_us


def test_stages_that_turn_out_too_large_are_searched_again_for_less_memory(graph, monkeypatch):
    given = []

    def search(step_graph, cluster, constraints, request, budget, memory):
        assert request.memory_limit_bytes == 2**30
        given.append((memory.share, memory.hopes))
        return search_stages(step_graph, cluster, constraints, request)

    def plan(step_graph, options, cluster, request, budget):
        assert request.memory_limit_bytes == 2**30
        if len(given) == 1:
            raise InfeasibleError("too large", code="E206")
        return SimpleNamespace(plan=SimpleNamespace(time_us=1.0))

    monkeypatch.setattr(planning, "search_stages", search)
    monkeypatch.setattr(planning, "plan_options", plan)
    request = SearchRequest(memory_limit_bytes=2**30)
    planning.plan_pipeline(graph, _hosts(2, 1), StageConstraints(2), request)
    assert given == [(1.0, True), (0.95, False)]


def test_stages_that_are_hoped_to_fit_are_planned_first(graph, monkeypatch):
    """What the tables say of a layer's memory is coarse: the plan of the stage decides."""
    cluster, constraints = _hosts(2, 1), StageConstraints(2)
    limit = 395 * 2**20
    by_the_tables = _search(graph, cluster, 2, limit)
    assert not by_the_tables.is_hopeful
    hopeful = search_stages(
        graph, cluster, constraints, SearchRequest(limit), memory=SearchedMemory(hopes=True)
    )
    assert hopeful.is_hopeful
    assert hopeful.claim.model_time_us < by_the_tables.claim.model_time_us
    planned = planning.plan_pipeline(graph, cluster, constraints, SearchRequest(limit))
    assert max(plan.peak_memory_bytes for plan in planned.plans) <= limit

    asked = []

    def plan(step_graph, options, cluster, request, budget):
        asked.append(options.is_hopeful)
        if options.is_hopeful:
            raise InfeasibleError("too large", code="E206")
        return SimpleNamespace(stages=options.stages, plan=SimpleNamespace(time_us=1.0))

    monkeypatch.setattr(planning, "plan_options", plan)
    found = planning.plan_pipeline(graph, cluster, constraints, SearchRequest(limit))
    assert asked[0]
    assert not any(asked[1:])
    assert found.stages == by_the_tables.stages


def test_a_search_without_time_says_so(graph, monkeypatch):
    empty = {"stages": [], "time_us": 1.0, "unlimited_us": 1.0, "interrupted": False}
    monkeypatch.setattr(_core, "search_pipeline", lambda *_args, **_options: empty)
    with pytest.raises(ConfigError) as raised:
        _search(graph, _hosts(2, 1), 2)
    assert raised.value.code == "E511"


def test_the_plan_of_searched_stages_is_priced_and_claims_what_the_search_proved():
    step, args = zoo.gpt(hidden=512, layers=2, heads=8, vocab=1024, batch_size=16)
    plan = sw.plan(step, *args, cluster=_hosts(2, 2), num_stages=2, num_microbatches=4)
    certificate = plan.certificate
    assert len(plan.stages) == 2
    assert certificate.status == "optimal"
    assert certificate.gap == 0
    # The model takes the pipeline's steps one after the other, and knows the step's other parts.
    assert 0.5 < certificate.time_us / certificate.model_time_us < 2
    assert sw.PipelinePlan.from_dict(plan.to_dict()) == plan


def test_microbatches_are_searched():
    step, args = zoo.gpt(hidden=512, layers=2, heads=8, vocab=1024, batch_size=16)
    cluster = _hosts(2, 1)
    found = sw.plan(step, *args, cluster=cluster, num_stages=2, num_microbatches="auto")
    times = {
        count: sw.plan(step, *args, cluster=cluster, num_stages=2, num_microbatches=count).time_us
        for count in (1, 2, 4, 8, 16)
    }
    assert found.time_us == min(times.values())
    assert found.num_microbatches == min(times, key=times.__getitem__)


def test_what_cannot_be_searched_is_shared_out_evenly(graph):
    three = sw.Cluster.local_cpu(3)
    assert not can_search(StageConstraints(3), three)
    assert not can_search(StageConstraints(2, boundaries=("layers.2",)), _hosts(1, 2))
    assert not can_search(StageConstraints(2, "interleaved_1f1b"), _hosts(1, 2))
    step, args = zoo.gpt_tiny()
    with pytest.raises(ConfigError) as raised:
        sw.plan(step, *args, cluster=three, num_stages="auto", num_microbatches=2)
    assert raised.value.code == "E528"
    assert "num_stages: auto" in str(raised.value)


def test_what_recomputation_might_save_is_not_claimed(graph, monkeypatch):
    found = _core.search_pipeline

    def searched(*args, **kwargs):
        return {**found(*args, **kwargs), "time_us": 10.0, "unlimited_us": 9.95}

    monkeypatch.setattr(_core, "search_pipeline", searched)
    claim = _search(graph, _hosts(2, 1), 2).claim
    assert (claim.model_time_us, claim.lower_bound_us) == (10.0, 9.95)


@pytest.mark.parametrize(
    ("again", "time_us", "bound_us"),
    [((9.0, 8.0, "optimal"), 9.0, 8.0), ((12.0, 8.0, "feasible"), 10.0, 8.0),
     ((0.0, 9.5, "time_limit"), 10.0, 9.5)],
)  # fmt: skip
def test_of_the_searches_with_and_without_recomputation_the_better_counts(
    graph, monkeypatch, again, time_us, bound_us
):
    found = _core.search_pipeline

    def searched(*args, **kwargs):
        first = found(*args, **{k: v for k, v in kwargs.items() if "recomputed" not in k})
        if "recomputed" not in kwargs:
            return {**first, "time_us": 10.0, "lower_bound_us": 10.0, "unlimited_us": 9.0}
        stages = first["stages"] if again[2] != "time_limit" else []
        values = dict(zip(("time_us", "lower_bound_us", "status"), again, strict=True))
        return {**first, **values, "stages": stages}

    monkeypatch.setattr(_core, "search_pipeline", searched)
    claim = _search(graph, _hosts(2, 1), 2).claim
    assert (claim.model_time_us, claim.lower_bound_us) == (time_us, bound_us)
    assert claim.out_of_time == (again[2] != "optimal")


@pytest.mark.parametrize(("again_us", "kept"), [(9.6, True), (9.4, False), (10.4, True)])
def test_stages_that_are_hardly_worse_in_the_model_are_kept_for_their_plans(
    graph, monkeypatch, again_us, kept
):
    found = _core.search_pipeline

    def searched(*args, **kwargs):
        is_again = "recomputed" in kwargs
        kwargs = {k: v for k, v in kwargs.items() if "recomputed" not in k}
        first = found(*args, **kwargs)
        stages = [{**stage, "recomputed": is_again} for stage in first["stages"]]
        time_us = again_us if is_again else 10.0
        return {
            **first, "stages": stages, "time_us": time_us, "lower_bound_us": 9.0,
            "unlimited_us": 9.0,
        }  # fmt: skip

    monkeypatch.setattr(_core, "search_pipeline", searched)
    options = _search(graph, _hosts(2, 1), 2)
    assert options.claim.model_time_us == min(10.0, again_us)
    assert all(stage.recompute == (again_us < 10.0) for stage in options.stages)
    assert (options.other is not None) == kept
    if kept:
        assert all(stage.recompute == (again_us > 10.0) for stage in options.other.stages)
        assert options.other.claim.model_time_us == max(10.0, again_us)
        assert options.other.claim.lower_bound_us == 9.0


def test_of_two_pipelines_that_the_search_cannot_tell_apart_the_faster_is_taken(graph, monkeypatch):
    cluster, constraints = _hosts(2, 1), StageConstraints(2)
    found = _search(graph, cluster, 2)
    later = dataclasses.replace(found.stages[1], begin=found.stages[1].layers[0], layers=())
    first = dataclasses.replace(
        found.stages[0], layers=(*found.stages[0].layers, found.stages[1].begin)
    )
    uneven = dataclasses.replace(found, stages=(first, later))
    request = SearchRequest()
    times = [
        planning.plan_options(graph, options, cluster, request).plan.time_us
        for options in (found, uneven)
    ]
    assert times[0] < times[1]
    for best, other in ((found, uneven), (uneven, found)):
        options = dataclasses.replace(best, other=other)
        monkeypatch.setattr(planning, "search_stages", lambda *_, options=options: options)
        planned = planning.plan_pipeline(graph, cluster, constraints, request).plan
        assert planned.time_us == times[0]
        assert planned.stages[1].begin == found.stages[1].begin


def test_layers_priced_by_an_earlier_search_give_the_same_stages(graph, monkeypatch):
    found = _core.search_pipeline
    calls = []

    def searched(*args, **kwargs):
        calls.append("recomputed" in kwargs)
        kept, alone = found(*args, **kwargs), found(*args, **{**kwargs, "priced": None})
        assert {**kept, "seconds": 0} == {**alone, "seconds": 0}
        return kept

    monkeypatch.setattr(_core, "search_pipeline", searched)
    _search(graph, _hosts(2, 1), 2, 350 * 2**20)
    assert calls == [False, True]


@pytest.mark.parametrize("asked", [{"recompute": "full"}, {"forced": {"x": "R R"}}])
def test_what_the_tables_do_not_know_is_not_claimed(graph, asked):
    cluster, constraints = _hosts(2, 1), StageConstraints(2)
    request = SearchRequest(memory_limit_bytes=None)
    assert search_stages(graph, cluster, constraints, request).claim is not None
    other = dataclasses.replace(request, **asked)
    assert search_stages(graph, cluster, constraints, other).claim is None


@pytest.mark.parametrize("spec", ["S7 R R", "S0 S0 S0", "P0 R R"])
def test_specs_that_a_stage_cannot_take_are_dropped_where_a_search_chose_them(spec):
    step, args = zoo.gpt_tiny()
    graph = split_microbatches(capture(step, args), 2)
    cluster, request = sw.Cluster.local_cpu(4), SearchRequest(memory_limit_bytes=None)
    first, second = even_stages(graph, StageConstraints(2), 4).stages
    first = dataclasses.replace(first, mesh=(2,))
    second = dataclasses.replace(second, mesh=(2,))
    freely = plan_options(graph, PipelineOptions((first, second)), cluster, request)
    value = next(t.transfer.value for t in freely.transfers if t.transfer.when == "forward")
    wished = dataclasses.replace(second, crossing={value: spec})
    assert plan_options(graph, PipelineOptions((first, wished)), cluster, request).plans
    demanded = dataclasses.replace(second, entry=spec)
    with pytest.raises((PlanError, ConfigError)):
        plan_options(graph, PipelineOptions((first, demanded)), cluster, request)


def test_a_scalar_between_stages_takes_the_time_of_its_messages():
    """The scalar loss of stage 0 goes to stage 1, and its gradient back."""

    class Scalar(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(8, 8)
            self.second = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            return (self.first(x).sum() * self.second).sum()

    def step(model, optimizer, x):
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = Scalar()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cluster = sw.Cluster.local_cpu(2)
    graph = capture(step, (model, optimizer, torch.randn(8, 8)))
    found = _search(graph, cluster, 2)
    assert found.claim.model_time_us > 2 * cluster.intra_host.latency_us


@pytest.mark.parametrize("num_stages", [None, 2])
def test_values_without_elements_go_between_stages(num_stages):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graph = capture(step, (model, optimizer, torch.randn(8, 0, 8)))
    assert _search(graph, sw.Cluster.local_cpu(2), num_stages).stages
