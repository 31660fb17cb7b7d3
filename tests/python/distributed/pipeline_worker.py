"""What one rank does for the pipeline matrix: case after case in one process."""

import math
from typing import Any

import torch
import torch.distributed as dist
from tests.python.distributed import pipeline_models as models
from tests.python.distributed.pipeline_cases import Case
from tests.python.distributed.process_group import init_gloo
from tests.python.parity.clusters import slow_compute
from torch import Tensor
from torch.distributed.tensor import DTensor

import shardwright as sw
from shardwright.runtime.session import Session

_TIMEOUT_S = 60


def run_cases(rank: int, world: int, cases: list[Case]) -> dict[Case, dict[str, Any]]:
    """Case -> "errors" by name, and the "stages" of this rank; rank 0 has the "plan"."""
    if not dist.is_initialized():
        init_gloo(rank, world, _TIMEOUT_S)
    found = {}
    for case in cases:
        try:
            found[case] = _run(case, world, rank)
        except BaseException as error:
            error.add_note(f"in the case: {case}")
            raise
    return found


def _run(case: Case, world: int, rank: int) -> dict[str, Any]:
    step, args = models.build(case.model, case.exact)
    graph = models.in_microbatches(case.model, case.exact)
    Session._captured = lambda *_: graph  # once per model, not once per case
    parallel = sw.parallelize(
        cluster=slow_compute(world),
        forced=models.forced_specs(case),
        timeout=_TIMEOUT_S,
        **case.options,
    )(step)
    errors: dict[str, float] = {}
    trajectory = models.expected(case.model, case.exact)
    for expected in trajectory:
        loss = parallel(*args)
        found = {"loss": loss, **models.snapshot(args, last=expected is trajectory[-1])}
        for name, value in found.items():
            if value.device.type != "meta":
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                error = _error(whole.detach(), expected[name])
                errors[name] = max(errors.get(name, 0.0), error)
    parallel._session._heartbeat.stop("left")
    own = parallel.pipeline.stages_of(rank)
    return {"errors": errors, "stages": own, "plan": parallel.plan if rank == 0 else None}


def _error(found: Tensor, expected: models.Expected) -> float:
    """Largest difference, relative; infinite for another shape or dtype."""
    right = expected.value
    if found.shape != right.shape or found.dtype != right.dtype:
        return math.inf
    if torch.equal(found, right):
        return 0.0
    distance = float((found - right).abs().max())
    return distance / expected.scale if math.isfinite(distance) and expected.scale else math.inf
