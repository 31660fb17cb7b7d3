"""Every kind of pipeline on real Gloo processes against plain torch on one device, ten steps.

After every step the loss and all parameters and buffers are compared, after the last the state of
the optimizer too, on every rank that holds them: integers bit for bit, float64 to 1e-12. All cases
on so many processes run in the same ones, one after the other.
"""

import pytest
import torch
from tests.python.distributed import pipeline_models as models
from tests.python.distributed.pipeline_cases import (
    ALL_CASES,
    LAYOUTS,
    MODELS,
    NUM_STEPS,
    SEARCHES,
    Case,
)
from tests.python.distributed.pipeline_worker import run_cases
from tests.python.distributed.process_group import run_ranks
from tests.python.unit.zoo.test_integer import WidthWatch
from torch.utils import _pytree as pytree

from shardwright.pipeline.session import _Messages

# Of every model, most layouts and schedules, and what the other tests on processes do not have.
_QUICK = (
    Case("unet", True, "1+1+2", "zero_bubble"),
    Case("unet", False, "pp4", "1f1b"),
    Case("wide_resnet", False, "pp2 x tp2", "interleaved_1f1b"),
    Case("wide_resnet", True, "3 of 4", "1f1b"),
    Case("gpt", False, "pp2 x dp2", "zero_bubble"),
)
assert set(_QUICK) <= set(ALL_CASES)
_FLOAT64_ERROR = 1e-12
# Cases that one group of processes runs: their process groups stay, with threads and sockets.
_MOST_AT_ONCE = 50
# Seconds that one case may take, all machines considered.
_CASE_TIMEOUT_S = 30

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def results(request):
    """Case -> what every rank found, for the cases that were selected; made as they are needed."""
    selected = []
    for item in request.session.items:
        parameters = getattr(item, "callspec", None)
        if item.path == request.path and parameters and "case" in parameters.params:
            selected.append(parameters.params["case"])
    return _Results(selected)


class _Results:
    def __init__(self, cases):
        self._cases = cases
        self._of_group = {}

    def of(self, case):
        """What every rank of the case found."""
        of_world = [other for other in self._cases if other.world == case.world]
        first = of_world.index(case) // _MOST_AT_ONCE * _MOST_AT_ONCE
        group = (case.world, first)
        if group not in self._of_group:
            cases = of_world[first : first + _MOST_AT_ONCE]
            try:
                self._of_group[group] = run_ranks(
                    case.world, run_cases, cases, timeout_s=_CASE_TIMEOUT_S * len(cases)
                )
            except Exception as error:
                self._of_group[group] = error
        found = self._of_group[group]
        if isinstance(found, Exception):
            raise found
        return [of_rank[case] for of_rank in found]


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c in _QUICK else pytest.mark.slow) for c in ALL_CASES],
    ids=str,
)
def test_stages_compute_what_one_device_computes(case, results):
    of_ranks = results.of(case)
    names = set().union(*(found["errors"] for found in of_ranks))
    assert names == set(models.expected(case.model, case.exact)[-1])
    bound = 0.0 if case.exact else _FLOAT64_ERROR
    for found in of_ranks:
        assert {n: e for n, e in found["errors"].items() if e > bound} == {}
    _check_stages(case, of_ranks)


def _lose_tied_gradients(transfer, value):
    return value * 0 if transfer.when == "update" and value.dim() else value


def _scale_norms(transfer, value):
    return value * 2 if transfer.when == "update" and not value.dim() else value


def _scale_gradients(transfer, value):
    return value * (1 + 1e-9) if transfer.when == "backward" else value


_BUGS = (_lose_tied_gradients, _scale_norms, _scale_gradients)


def _with_bugs(rank, world, case):
    """By bug the largest error that `run_cases` finds."""
    send = _Messages.send
    found = []
    for change in _BUGS:

        def wrong(self, transfer, microbatch, value, change=change):
            send(self, transfer, microbatch, change(transfer.transfer, value))

        _Messages.send = wrong
        errors = run_cases(rank, world, [case])[case]["errors"]
        found.append(max(e for name, e in errors.items() if name.startswith("stored ")))
    return found


@pytest.mark.slow
def test_planted_bugs_are_seen():
    for of_rank in run_ranks(2, _with_bugs, Case("gpt", False, "pp2", "1f1b")):
        assert len(of_rank) == len(_BUGS)
        assert min(of_rank) > 1e-10


@pytest.mark.parametrize("model", MODELS)
def test_integers_are_exact_in_every_step_in_any_order(model):
    step, args = models.build(model, exact=True)
    args = pytree.tree_map_only(torch.Tensor, _doubled, args)
    args[0].double()
    for _ in range(NUM_STEPS):
        with WidthWatch() as watch:
            step(*args)
        assert 0 < watch.bits < 24


def _doubled(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def _check_stages(case, of_ranks):
    """The pipeline is the one that was asked for."""
    plan = of_ranks[0]["plan"]
    own = [found["stages"] for found in of_ranks]
    assert plan.schedule == case.schedule
    assert all(stage.recomputed == (case.recompute == "full") for stage in plan.stages)
    if case.searched:
        wanted = SEARCHES[case.layout][1]
        assert wanted in ("auto", len(plan.stages))
        assert all(len(stages) == 1 for stages in own)
        return
    devices = LAYOUTS[case.layout]
    groups = [number for number, count in enumerate(devices) for _ in range(count)]
    turns = range(case.stages_per_rank)
    assert own == [tuple(g + turn * len(devices) for turn in turns) for g in groups]
