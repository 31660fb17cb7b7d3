"""Megatron's plan is found unaided, and tensor parallelism gives way to data parallelism where the
published inequality says so.

Source: reference tables, section 3.2. Bytes are those of a ring per device, 2 per element.
"""

import pytest
import torch
from tests.python.oracles.steps import (
    Attention,
    alpa_cluster,
    byte_cluster,
    counts,
    empty,
    linear_stack,
    ring_bytes,
    training,
)
from torch import Tensor, nn

import shardwright as sw
from shardwright import _core
from shardwright.capture import StepGraph
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.planning import sharded_graph

MIB = 2**20


class MegatronBlock(nn.Module):
    """Attention and MLP `h -> 4h -> h` on residuals, without norms; x is [batch, seq, hidden]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.down(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]


def block_step(num_blocks: int, hidden: int, batch: int, seq: int) -> StepGraph:
    with torch.device("meta"):
        blocks = nn.Sequential(*[MegatronBlock(hidden, hidden // 128) for _ in range(num_blocks)])
    x = empty(batch, seq, hidden, dtype=torch.bfloat16)
    return training(blocks.to(torch.bfloat16), [x, x])


@pytest.mark.parametrize(("hidden", "mebibytes"), [(2048, 28), (4096, 56), (5120, 70), (8192, 112)])
def test_block_is_split_by_heads_and_columns_unaided(hidden: int, mebibytes: int) -> None:
    # Four all-reduces of A = 2 * 1024 * h bytes over 8 devices: 4 * 2 * 7/8 * A. The first block
    # needs no gradient of its input and has three, so the second is what is counted.
    one, two = (
        sw.plan(
            block_step(num_blocks, hidden, 1, 1024),
            mesh=(8,),
            cluster=byte_cluster((8,), alpha=1.0),
            shard_all_products=True,
        )
        for num_blocks in (1, 2)
    )
    assert two.certificate.status == "optimal"
    assert counts(one) == {"all_reduce": 3}
    assert counts(two) == {"all_reduce": 7}
    assert ring_bytes(two) - ring_bytes(one) == mebibytes * MIB
    inputs = {name: tensor.text.split() for name, tensor in two.inputs.items()}
    for block in range(2):
        for name in ("attention.q", "attention.k", "attention.v", "up"):
            assert inputs[f"{block}.{name}.weight"] == ["S0", "R"]  # [out, in]
        for name in ("attention.out", "down"):
            assert inputs[f"{block}.{name}.weight"] == ["R", "S0"]


def pure_plans(batch: int) -> tuple[float, float, sw.Plan]:
    """Cost of pure data and of pure tensor parallelism, and the planner's own plan."""
    x = empty(batch, 256)
    graph = training(linear_stack(8, 256), [x, x])
    cluster = byte_cluster((4,))
    products = [n.name for n in graph.graph_module.graph.nodes if n.name.startswith("mm")][:8]
    data = {"*.weight": "R R", "x": "S0 R"} | dict.fromkeys(products, "S0 R")
    tensor = {f"{i}.weight": "S0 R" if i % 2 == 0 else "R S0" for i in range(8)}
    tensor |= {name: "R S0" if i % 2 == 0 else "R R P0" for i, name in enumerate(products)}

    def planned(forced: dict[str, str]) -> sw.Plan:
        return sw.plan(graph, mesh=(4,), cluster=cluster, forced=forced, shard_all_products=True)

    return planned(data).time_us, planned(tensor).time_us, planned({})


def test_data_parallelism_wins_from_eight_sevenths_of_the_width() -> None:
    # 8 weight against 7 activation all-reduces: equal at batch 8 h / 7 = 292.6. Costs by hand:
    # 8 * 2 * 3/4 * 256 * 256 * 4 = 3,145,728 and 7 * 2 * 3/4 * 256 * 4 * batch.
    for batch in (280, 292, 296, 308):
        data, tensor, best = pure_plans(batch)
        assert data == pytest.approx(3_145_728, rel=1e-3)
        assert tensor == pytest.approx(10_752 * batch, rel=1e-3)
        assert (tensor < data) == (batch < 292.6)
        assert best.time_us <= min(data, tensor)


def test_planner_mixes_both_around_the_break_even() -> None:
    # The first two layers need no input gradient: as column and row they cost one activation
    # all-reduce, against two weight all-reduces, so they are split up to batch 2 h = 512; every
    # other pair costs two and two, so it turns at batch h = 256. At 292: 6 weights + 1 activation.
    _, _, best = pure_plans(292)
    assert best.time_us == pytest.approx(6 * 1.5 * 262_144 + 1.5 * 292 * 256 * 4, rel=1e-3)


def test_planner_is_pure_outside_the_mixing_range() -> None:
    _, tensor, best = pure_plans(240)
    assert best.time_us == pytest.approx(tensor, rel=1e-3)
    # Up to batch 4 h an all-to-all of the first activation is cheaper than one weight's all-reduce.
    data, _, best = pure_plans(1056)
    assert best.time_us == pytest.approx(data, rel=1e-3)


@pytest.mark.parametrize("share", [0.95, 1.05])
def test_whole_block_turns_at_three_times_its_width(share: float) -> None:
    # 12 h^2 weights against 4 A = 8 h tokens: tensor wins if and only if tokens < 3 h. The second
    # of two blocks is counted, as above.
    hidden, tokens = 1024, int(3 * 1024 * share) // 64 * 64
    cluster = byte_cluster((8,))
    costs: dict[str, list[float]] = {"data": [], "tensor": [], "free": []}
    for num_blocks in (1, 2):
        graph = block_step(num_blocks, hidden, 8, tokens // 8)
        schemes = {"data": whole_weights(graph), "tensor": megatron_weights(graph), "free": {}}
        for scheme, forced in schemes.items():
            plan = sw.plan(
                graph, mesh=(8,), cluster=cluster, forced=forced, shard_all_products=True
            )
            costs[scheme].append(plan.time_us)
    data, tensor = (costs[scheme][1] - costs[scheme][0] for scheme in ("data", "tensor"))
    assert data == pytest.approx(2 * 7 / 8 * 2 * 12 * hidden**2, rel=1e-3)
    assert tensor == pytest.approx(2 * 7 / 8 * 2 * 4 * tokens * hidden, rel=1e-3)
    assert (tensor < data) == (share < 1)
    assert costs["free"][1] <= min(costs["data"][1], costs["tensor"][1])


def forward_products(graph: StepGraph) -> list[str]:
    """Names of the products of q, k, v, out, up, down, block by block."""
    nodes = graph.graph_module.graph.nodes
    return [n.name for n in nodes if n.name.startswith("mm") and n.meta["phase"] == "forward"]


def whole_weights(graph: StepGraph) -> dict[str, str]:
    """Data parallelism: weights whole, products split over tokens."""
    return {"*.weight": "R R"} | dict.fromkeys(forward_products(graph), "S0 R")


def megatron_weights(graph: StepGraph) -> dict[str, str]:
    """Tensor parallelism: columns of q, k, v, up; rows of out and down."""
    forced = {}
    for index, name in enumerate(forward_products(graph)):
        forced[name] = "R R P0" if index % 6 in (3, 5) else "R S0"
    return forced


# What is repeated every microbatch stays on the fast axis; only the gradients' reduction, once per
# step, uses the slow one. Bandwidths of section 3.3: 25 Gb/s per host shared by four rings, and
# 100 GB/s inside; one unit is a microsecond.
SLOW, FAST = 4 / 3125, 1 / 100_000


@pytest.mark.parametrize("slow_axis", [0, 1])
def test_repeated_communication_goes_to_the_fast_axis(slow_axis: int) -> None:
    mesh = (2, 4)
    # Sums over microbatches of 16-bit gradients are kept in 32 bits; so all is in 32 bits here, and
    # bytes go twice as fast: an element takes as long as the 2 bytes of the published figures.
    beta = [FAST / 2, FAST / 2]
    beta[slow_axis] = SLOW / 2
    # 2048 samples per microbatch: with 4096 it is cheapest to add up whole gradients on both axes.
    x = empty(8 * 2048, 4096)
    graph = split_microbatches(training(linear_stack(2, 4096), [x, x]), 8)
    plan = sw.plan(
        graph,
        mesh=mesh,
        cluster=byte_cluster(mesh, beta, alpha=1.0),
        shard_all_products=True,
    )
    used = {
        (instruction.phase, instruction.step.axis)
        for instruction in _emitted(graph, plan)
        if instruction.step is not None and instruction.step.kind not in ("slice", "mask")
    }
    assert {("forward", 1 - slow_axis), ("backward", 1 - slow_axis)} & used
    assert ("update", slow_axis) in used
    assert ("forward", slow_axis) not in used
    assert ("backward", slow_axis) not in used
    if slow_axis == 0:
        # Per layer the published DP2 x TP4 takes 10.7 + 2.0 ms, the latter for 4096 samples.
        assert plan.time_us <= 2 * (10_740 + 2_000 / 2)


def _emitted(graph: StepGraph, plan: sw.Plan) -> list[_core.Instruction]:
    sharded = sharded_graph(graph)
    return list(_core.emit_program(sharded, plan.to_core(sharded)).instructions)


@pytest.mark.parametrize(
    ("mesh", "beta", "weight"),
    [((4, 8), (1, 0.01), "S1 R"), ((8, 4), (0.01, 1), "S0 R")],
    ids=["fast axis 1", "fast axis 0"],
)
def test_swapping_bandwidths_swaps_the_axes(
    mesh: tuple[int, int], beta: tuple[float, float], weight: str
) -> None:
    x = empty(1024, 128)
    plan = sw.plan(
        training(linear_stack(2, 128), [x, x]),
        mesh=mesh,
        cluster=alpa_cluster(mesh, beta),
        shard_all_products=True,
    )
    assert plan.inputs["0.weight"].text == weight
    assert counts(plan) == {"all_reduce": 3}
