"""Emitted programs of random plans, every value on every rank against the step on one device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.python.parity.random_plan import RandomPlanner
from tests.python.parity.table_interpreter import Simulation
from torch import Tensor, fx

import shardwright.lowering.shard_ops  # noqa: F401  (registers the ops)
from shardwright import _core, zoo
from shardwright.capture.arguments import sort_arguments
from shardwright.capture.binding import read_inputs
from shardwright.capture.capture import capture
from shardwright.graph_table import to_core_graph
from shardwright.planning import sharded_graph

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


class Recorder(fx.Interpreter):
    """Keeps the values of all nodes, multiple outputs as tuples."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, tuple[Tensor, ...]] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Strides carry no meaning in a step graph: a view is any reshape.
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output":
            self.values[n.name] = tuple(result) if isinstance(result, (list, tuple)) else (result,)
        return result


class Case:
    def __init__(self, build: Callable[[], Any]) -> None:
        step, args = build()
        step_graph = capture(step, args)
        inputs = read_inputs(step_graph, sort_arguments(step, args, {}), seed=7)
        recorder = Recorder(step_graph.graph_module)
        with torch.no_grad():
            recorder.run(*inputs)
        self.dense = recorder.values
        self.graph = to_core_graph(step_graph)
        self.sharded = sharded_graph(step_graph)
        self.names = [self.graph.node(index)["name"] for index in range(len(self.graph))]
        self.output_names = [(node.name, 0) for node in step_graph.output_nodes]


_CASES: dict[str, Case] = {}


def case_of(build: Callable[[], Any]) -> Case:
    if build.__name__ not in _CASES:
        _CASES[build.__name__] = Case(build)
    return _CASES[build.__name__]


def run_random_plans(case: Case, mesh_shape: tuple[int, ...], num_plans: int) -> None:
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
    run_random_plans(case_of(build), mesh_shape, num_plans=3)


@pytest.mark.parametrize("mesh_shape", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("build", [mlp_sgd, mlp_adamw, gpt_tied], ids=lambda b: b.__name__)
def test_every_value_of_random_plans_equals_the_dense_step(build, mesh_shape) -> None:
    run_random_plans(case_of(build), mesh_shape, num_plans=6)
