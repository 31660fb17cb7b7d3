"""What a certificate counts is what the program does: collectives, bytes and microseconds."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from tests.python.parity.random_plan import RandomPlanner
from tests.python.parity.step_case import StepCase
from tests.python.parity.table_interpreter import Simulation

from shardwright import Cluster, _core, zoo

CLUSTER = Cluster.preset("p3.16xlarge", devices_per_host=4)


def mlp() -> Any:
    return zoo.mlp(
        hidden=256, inner=1024, layers=3, batch_size=64, device="cpu", dtype=torch.float64
    )


def gpt() -> Any:
    return zoo.gpt(
        hidden=32, layers=2, heads=4, vocab=64, seq_len=16, batch_size=8, dropout=0.1,
        device="cpu", dtype=torch.float64,
    )  # fmt: skip


def emitted_collectives(table: _core.ProgramTable) -> dict[str, tuple[int, float, float]]:
    """Kind -> count, sum of V and microseconds of the program's collectives."""
    found: dict[str, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
    for instruction in table.instructions:
        step = instruction.step
        if step is not None and step.kind not in ("slice", "mask"):
            count, size, cost_us = found[step.kind]
            found[step.kind] = (count + 1, size + step.bytes, cost_us + step.cost_us)
    return found


def assert_priced_is_emitted(case: StepCase, plan: _core.Plan) -> _core.ProgramTable:
    table = _core.emit_program(case.sharded, plan)
    certificate = _core.certify_plan(case.sharded, plan)
    emitted = emitted_collectives(table)
    counted = {kind: c for kind, c in certificate.collectives.items() if c.count}
    assert emitted.keys() == counted.keys()
    for kind, (count, size, cost_us) in emitted.items():
        assert counted[kind].count == count, kind
        assert counted[kind].bytes == size, kind
        assert counted[kind].cost_us == pytest.approx(cost_us), kind
    total_us = sum(cost_us for _, _, cost_us in emitted.values())
    assert certificate.communication_us == pytest.approx(total_us)
    return table


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)], ids=str)
@pytest.mark.parametrize("build", [mlp, gpt], ids=lambda b: b.__name__)
def test_searched_plan_costs_what_its_program_does_and_computes_the_step(build, mesh_shape) -> None:
    case = StepCase.of(build)
    result = _core.plan_step(
        case.sharded,
        CLUSTER.to_core(),
        mesh_shape=list(mesh_shape),
        memory_limit_bytes=None,
        forced={},
        num_microbatches=1,
        time_limit_s=20.0,
        shard_all_products=False,
        graph_hash="",
    )
    table = assert_priced_is_emitted(case, result.plan)
    with torch.no_grad():
        Simulation(table, CLUSTER.mesh(mesh_shape), case.dense, case.names).run()


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)], ids=str)
def test_random_plans_cost_what_their_programs_do(mesh_shape) -> None:
    case = StepCase.of(gpt)
    planner = RandomPlanner(case.graph, case.sharded, mesh_shape)
    for seed in range(3):
        assert_priced_is_emitted(case, planner.draw(seed))
