"""The time limit is for all searches together, and Ctrl-C ends them all."""

import dataclasses
import itertools
import signal
import time

import pytest

import shardwright as sw
from shardwright import _core, search_budget, zoo
from shardwright.capture import capture
from shardwright.errors import ConfigError, InfeasibleError
from shardwright.pipeline import planning
from shardwright.pipeline.microbatch_search import search_microbatches
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.search import search_stages
from shardwright.planning import SearchRequest
from shardwright.search_budget import SearchBudget, search_seconds


class _Clock:
    """Seconds that pass when it is told so."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = _Clock()
    monkeypatch.setattr(search_budget, "time", made)
    return made


@pytest.fixture(scope="module")
def captured():
    step, args = zoo.gpt(
        hidden=512, layers=2, heads=8, vocab=1024, batch_size=16, tied=False, seq_len=256
    )
    return capture(step, args)


@pytest.fixture(scope="module")
def graph(captured):
    return split_microbatches(captured, 4)


_CLUSTER = sw.Cluster.preset("p3.16xlarge", nodes=2, devices_per_host=1)


def _spied(monkeypatch, changed):
    """The limits that searches were given; `changed(limits)` is what their answers have instead."""
    limits = []
    found = _core.search_pipeline

    def search(*args, time_limit_s, **kwargs):
        limits.append(time_limit_s)
        kwargs = {k: v for k, v in kwargs.items() if "recomputed" not in k}
        return {**found(*args, **kwargs), **changed(limits)}

    monkeypatch.setattr(_core, "search_pipeline", search)
    return limits


def test_a_budget_runs_out(clock):
    budget = SearchBudget(10.0)
    clock.now += 4.0
    assert budget.left_s == pytest.approx(6.0)
    assert not budget.is_spent
    clock.now += 7.0
    assert budget.left_s == 0.0
    assert budget.is_spent


def test_both_searches_for_stages_share_the_time(graph, monkeypatch, clock):
    def changed(_limits):
        clock.now += 7.0
        return {"unlimited_us": 0.0}

    limits = _spied(monkeypatch, changed)
    search_stages(graph, _CLUSTER, StageConstraints(2), SearchRequest(2**30, time_limit_s=20.0))
    assert limits == pytest.approx([20.0, 13.0])


def test_without_time_left_there_is_no_second_search_and_less_is_claimed(graph, monkeypatch, clock):
    def changed(_limits):
        clock.now += 30.0
        return {"time_us": 10.0, "lower_bound_us": 10.0, "unlimited_us": 5.0}

    limits = _spied(monkeypatch, changed)
    request = SearchRequest(2**30, time_limit_s=20.0)
    claim = search_stages(graph, _CLUSTER, StageConstraints(2), request).claim
    assert limits == [20.0]
    assert (claim.model_time_us, claim.lower_bound_us) == (10.0, 5.0)


def test_searches_for_less_memory_and_plans_share_the_time(graph, monkeypatch, clock):
    """Each search for stages may take three quarters of what is left of 60 s, plans the rest."""
    given = []

    def search(step_graph, cluster, constraints, request, budget, memory):
        given.append(request.time_limit_s)
        clock.now += 10.0
        return search_stages(step_graph, cluster, constraints, request)

    def plan(step_graph, options, cluster, request, budget):
        given.append(budget.left_s)
        clock.now += 5.0
        raise InfeasibleError("too large", code="E206")

    monkeypatch.setattr(planning, "search_stages", search)
    monkeypatch.setattr(planning, "plan_options", plan)
    request = SearchRequest(2**30, time_limit_s=60.0)
    with pytest.raises(InfeasibleError, match="too large"):
        planning.plan_pipeline(graph, _CLUSTER, StageConstraints(2), request)
    assert given == pytest.approx([45.0, 50.0, 33.75, 35.0, 22.5, 20.0])
    given.clear()
    with pytest.raises(InfeasibleError, match="too large"):
        planning.plan_pipeline(
            graph, _CLUSTER, StageConstraints(2), dataclasses.replace(request, time_limit_s=12.0)
        )
    assert given == pytest.approx([9.0, 2.0])


def test_a_stage_may_take_an_equal_share_of_what_those_before_it_left(graph, monkeypatch, clock):
    given = []
    found = planning.plan_graph

    def plan(step_graph, cluster, mesh, request):
        given.append(request.time_limit_s)
        clock.now += 2.0
        return found(step_graph, cluster, mesh, dataclasses.replace(request, time_limit_s=60.0))

    monkeypatch.setattr(planning, "plan_graph", plan)
    options = search_stages(graph, _CLUSTER, StageConstraints(2), SearchRequest())
    options = dataclasses.replace(
        options, stages=tuple(dataclasses.replace(s, crossing={}) for s in options.stages)
    )
    planning.plan_options(graph, options, _CLUSTER, SearchRequest(time_limit_s=20.0))
    assert given == pytest.approx([10.0, 18.0])


def test_numbers_of_microbatches_share_the_time(captured, clock):
    given = []
    times = itertools.count(100, -1)

    def plan(graph, budget):
        given.append((graph.num_microbatches, budget.left_s))
        clock.now += 16.0
        return float(next(times)), graph.num_microbatches

    # 40 / 2, 24 / 2 and 8 / 2 seconds; then the time is over.
    assert search_microbatches(captured, plan, SearchBudget(40.0)) == 4
    assert given == [(1, 20.0), (2, 12.0), (4, 4.0)]


def test_a_step_that_is_cut_has_all_the_time(graph, clock):
    assert (
        search_microbatches(graph, lambda _, budget: (1.0, budget.left_s), SearchBudget(40.0))
        == 40.0
    )


def test_a_number_of_microbatches_without_enough_time_is_passed_over(captured, clock):
    def plan(graph, budget):
        clock.now += 1.0
        if graph.num_microbatches != 2:
            raise ConfigError("no time", code="E511")
        return 1.0, graph.num_microbatches

    assert search_microbatches(captured, plan, SearchBudget(60.0)) == 2
    with pytest.raises(ConfigError) as raised:
        search_microbatches(captured, plan, SearchBudget(0.5))
    assert raised.value.code == "E511"


def test_next_to_no_time_ends_all_searches_at_once(captured, monkeypatch):
    limits = []
    found = _core.search_pipeline

    def search(*args, **kwargs):
        limits.append(kwargs["time_limit_s"])
        return found(*args, **kwargs)

    monkeypatch.setattr(_core, "search_pipeline", search)
    started = time.monotonic()
    with pytest.raises(ConfigError) as raised:
        sw.plan(
            captured, cluster=_CLUSTER, num_stages=2, num_microbatches="auto", time_limit_s=1e-3
        )
    assert raised.value.code == "E511"
    assert len(limits) == 1
    assert time.monotonic() - started < 60  # of which nearly all is reading the step


class _CtrlC:
    """Raises KeyboardInterrupt after so much CPU time of this process."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __enter__(self):
        self._handler = signal.signal(signal.SIGPROF, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._handler)


def test_ctrl_c_while_layers_are_priced_ends_everything(captured, monkeypatch):
    num_searches = 0
    found = _core.search_pipeline

    def search(*args, **kwargs):
        nonlocal num_searches
        num_searches += 1
        with _CtrlC(0.005):
            return found(*args, **kwargs)

    monkeypatch.setattr(_core, "search_pipeline", search)
    with pytest.raises(KeyboardInterrupt):
        sw.plan(captured, cluster=_CLUSTER, num_stages=2, num_microbatches="auto")
    assert num_searches == 1


def test_ctrl_c_that_leaves_stages_ends_the_searches_that_would_follow(captured, monkeypatch):
    limits = _spied(monkeypatch, lambda _limits: {"interrupted": True, "unlimited_us": 0.0})
    plan = sw.plan(captured, cluster=_CLUSTER, num_stages=2, num_microbatches="auto")
    assert len(plan.stages) == 2
    assert plan.num_microbatches == 1
    assert len(limits) == 1


def test_ctrl_c_in_the_search_that_recomputes_leaves_the_stages_of_the_other(graph, monkeypatch):
    """Of those that recompute nothing is known: no bound but that of unlimited memory holds."""
    found = _core.search_pipeline

    def search(*args, **kwargs):
        if "recomputed" in kwargs:
            raise KeyboardInterrupt
        times = {"time_us": 10.0, "lower_bound_us": 10.0, "unlimited_us": 5.0}
        return {**found(*args, **kwargs), **times}

    monkeypatch.setattr(_core, "search_pipeline", search)
    budget = SearchBudget(60.0)
    options = search_stages(graph, _CLUSTER, StageConstraints(2), SearchRequest(2**30), budget)
    assert len(options.stages) == 2
    assert budget.interrupted
    assert (options.claim.model_time_us, options.claim.lower_bound_us) == (10.0, 5.0)


def test_ctrl_c_in_a_later_number_of_microbatches_leaves_the_best_so_far(captured):
    def plan(graph, _budget):
        if graph.num_microbatches == 2:
            raise KeyboardInterrupt
        return 1.0, graph.num_microbatches

    assert search_microbatches(captured, plan, SearchBudget(60.0)) == 1


def test_after_ctrl_c_no_number_of_microbatches_is_tried_even_if_nothing_fits(captured):
    tried = []

    def plan(graph, budget):
        tried.append(graph.num_microbatches)
        budget.interrupted = True
        raise InfeasibleError("too large", code="E206")

    with pytest.raises(InfeasibleError, match="too large"):
        search_microbatches(captured, plan, SearchBudget(60.0))
    assert tried == [1]


@pytest.mark.parametrize("num_stages", [1, 2])
def test_plans_are_made_though_cutting_the_step_took_all_the_time(captured, num_stages):
    given = {} if num_stages == 1 else {"num_stages": 2, "stage_ranks": (1, 1)}
    plan = sw.plan(captured, cluster=_CLUSTER, num_microbatches=4, time_limit_s=1e-6, **given)
    assert plan.num_microbatches == 4


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "60", True])
def test_a_time_limit_is_a_positive_number_of_seconds(seconds):
    with pytest.raises(ConfigError, match="time_limit_s must be a positive number") as raised:
        search_seconds(seconds)
    assert raised.value.code == "E520"
