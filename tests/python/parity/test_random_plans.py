"""Emitted programs of random plans, every value on every rank against the step on one device."""

from typing import Any

import pytest
import torch
from tests.python.parity.random_plan import RandomPlanner
from tests.python.parity.step_case import StepCase
from tests.python.parity.table_interpreter import Simulation

from shardwright import _core, zoo

F64 = torch.float64


def mlp_sgd() -> Any:
    return zoo.mlp(
        hidden=8, inner=16, layers=2, batch_size=8, optimizer="sgd", device="cpu", dtype=F64
    )


def mlp_adamw() -> Any:
    return zoo.mlp(
        hidden=8, inner=16, layers=3, batch_size=8, optimizer="adamw", device="cpu", dtype=F64
    )


def gpt_tied() -> Any:
    return zoo.gpt(
        hidden=16, layers=1, heads=4, vocab=32, seq_len=8, batch_size=4, tied=True, dropout=0.25,
        device="cpu", dtype=F64,
    )  # fmt: skip


def llama_tiny() -> Any:
    return zoo.llama_tiny(dtype=F64)


def moe_tiny() -> Any:
    return zoo.moe_tiny(dtype=F64)


def vit_tiny() -> Any:
    return zoo.vit_tiny(dtype=F64)


def wide_resnet_tiny() -> Any:
    return zoo.wide_resnet_tiny(dtype=F64)


def run_random_plans(case: StepCase, mesh_shape: tuple[int, ...], num_plans: int) -> None:
    planner = RandomPlanner(case.graph, case.sharded, mesh_shape)
    for seed in range(num_plans):
        table = _core.emit_program(case.sharded, planner.draw(seed))
        simulation = Simulation(table, planner.mesh, case.dense, case.names)
        with torch.no_grad():
            simulation.run()
        for output in table.outputs:
            tensor = table.instructions[output.value.instruction].outputs[output.value.output]
            if output.updates < 0:
                assert all(placement.kind == "R" for placement in tensor.spec)
            else:
                assert tensor.spec == table.instructions[output.updates].outputs[0].spec


MORE = [llama_tiny, moe_tiny, vit_tiny, wide_resnet_tiny]


@pytest.mark.slow
@pytest.mark.parametrize("mesh_shape", [(2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("build", MORE, ids=lambda b: b.__name__)
def test_more_models_and_ranks(build, mesh_shape) -> None:
    run_random_plans(StepCase.of(build), mesh_shape, num_plans=3)


@pytest.mark.parametrize("mesh_shape", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("build", [mlp_sgd, mlp_adamw, gpt_tied], ids=lambda b: b.__name__)
def test_every_value_of_random_plans_equals_the_dense_step(build, mesh_shape) -> None:
    run_random_plans(StepCase.of(build), mesh_shape, num_plans=6)
