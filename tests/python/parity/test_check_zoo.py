"""The static checker on programs it has not been written for: random plans and a large one."""

import pytest
import torch
from tests.python.distributed.unet import unet
from tests.python.parity.random_plan import RandomPlanner

import shardwright as sw
from shardwright import _core, zoo
from shardwright.capture import capture
from shardwright.graph_table import to_core_graph
from shardwright.lowering.check import check_program
from shardwright.lowering.emitted import lower
from shardwright.lowering.from_core import table_from_core
from shardwright.lowering.program import Program
from shardwright.planning import sharded_graph


def gpt_dropout():
    return zoo.gpt(
        hidden=16, layers=1, heads=4, vocab=32, seq_len=8, batch_size=4, tied=True, dropout=0.25,
        device="cpu", dtype=torch.float32,
    )  # fmt: skip


MAKERS = {
    "mlp": zoo.mlp_tiny,
    "gpt": gpt_dropout,
    "llama": zoo.llama_tiny,
    "wide_resnet": zoo.wide_resnet_integer,
    "vit": zoo.vit_tiny,
    "moe": zoo.moe_tiny,
    "unet": unet,
}


@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=["2", "2x2"])
@pytest.mark.parametrize("name", MAKERS)
def test_random_plans_are_proven(name, mesh):
    graph = capture(*MAKERS[name]())
    sharded = sharded_graph(graph)
    planner = RandomPlanner(to_core_graph(graph), sharded, mesh)
    names = [node["name"] for node in _core.describe_nodes(sharded)]
    for seed in range(2):
        table = table_from_core(_core.emit_program(sharded, planner.draw(seed)), names)
        assert check_program(Program(graph, table)).unknown == ()


@pytest.mark.slow
def test_a_plan_of_gpt_1_3b_on_eight_gpus_is_proven():
    graph = capture(*zoo.gpt_1_3b())
    plan = sw.plan(graph, cluster="p3.16xlarge:1", time_limit_s=30)
    report = check_program(lower(graph, plan))
    assert report.unknown == ()
    assert report.num_checked > 5000
