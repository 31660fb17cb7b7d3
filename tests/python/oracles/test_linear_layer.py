"""One linear layer on a 2 x 4 mesh: bytes moved and held by each of the usual plans.

Source: reference tables, section 3.3. Y = X W with tokens, inputs and outputs 4096 in half
precision: every tensor is 32 MiB. X is a parameter here, so that its gradient is needed.
"""

import pytest
import torch
from tests.python.oracles.steps import byte_cluster, ring_bytes
from torch import Tensor, nn

import shardwright as sw
from shardwright import _core
from shardwright.capture import StepGraph, capture

MIB = 2**20
MESH = (2, 4)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.empty(4096, 4096, dtype=torch.float16))
        self.w = nn.Parameter(torch.empty(4096, 4096, dtype=torch.float16))

    def forward(self) -> Tensor:
        return self.x @ self.w


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    y = model()
    ((y * y).sum() * 0.5).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    model = Linear().to("meta")
    return capture(step, (model, torch.optim.SGD(model.parameters(), lr=0.1)))


def planned(
    graph: StepGraph, specs: str, *, full: bool = True, limit: int | None = None
) -> sw.Plan:
    """Plans with the specs of x, w, y, dx and dw forced."""
    y, dw, dx = (n.name for n in graph.graph_module.graph.nodes if n.name.startswith("mm"))
    forced = dict(zip(("x", "w", y, dx, dw), specs.split(" ; "), strict=True))
    return sw.plan(
        graph,
        mesh=MESH,
        cluster=byte_cluster(MESH, alpha=1.0),
        forced=forced,
        shard_all_products=full,
        memory_limit=limit,
    )


@pytest.mark.parametrize(
    ("specs", "mebibytes"),
    [
        pytest.param("S01 R ; R R ; S01 R ; S01 R ; R R P01", 56, id="DP-8"),
        pytest.param("R R ; R S01 ; R S01 ; R R P01 ; R S01", 56, id="column TP-8"),
        pytest.param("R S01 ; S01 R ; R R P01 ; R S01 ; S01 R", 56, id="row TP-8"),
        pytest.param("S0 R ; R S1 ; S0 S1 ; S0 R P1 ; R S1 P0", 32, id="DP2 x TP4 column"),
        pytest.param("S0 S1 ; S1 R ; S0 R P1 ; S0 S1 ; S1 R P0", 32, id="DP2 x TP4 row"),
        pytest.param("S01 R ; S01 R ; S01 R ; S01 R ; R R P01", 56, id="ZeRO-1 and 2"),
    ],
)
def test_bytes_per_device(graph: StepGraph, specs: str, mebibytes: int) -> None:
    assert ring_bytes(planned(graph, specs)) == pytest.approx(mebibytes * MIB, rel=1e-6)


def test_zero3_gathers_the_weight_again_when_memory_is_short(graph: StepGraph) -> None:
    # Forward and backward gather, 28 MiB each, and the gradient is scattered. Kept, the gathered
    # weight makes the peak 80 MiB; gathered again, 64 MiB.
    specs = "S01 R ; S01 R ; S01 R ; S01 R ; R R P01"
    assert planned(graph, specs).peak_memory_bytes > 72 * MIB
    plan = planned(graph, specs, limit=72 * MIB)
    assert ring_bytes(plan) == pytest.approx(84 * MIB, rel=1e-6)
    assert plan.peak_memory_bytes <= 72 * MIB


def test_idle_axis_shortens_the_reduction(graph: StepGraph) -> None:
    # Published 48 MiB: an all-reduce of dW over axis 1 alone. As axis 0 holds copies, half of dW
    # each is reduced, 24 MiB, and the halves are gathered along axis 0, 16 MiB.
    plan = planned(graph, "S1 R ; R R ; S1 R ; S1 R ; R R P1", full=False)
    assert ring_bytes(plan) == pytest.approx(40 * MIB, rel=1e-6)
    assert ring_bytes(plan) <= 48 * MIB


@pytest.mark.parametrize(
    ("weight", "gradient", "state", "mebibytes"),
    [
        ("R R", "R R", "R R", 256),  # replicated
        ("R S01", "R S01", "R S01", 32),  # tensor parallel over 8
        ("R S1", "R S1", "R S1", 64),  # over 4
        ("R R", "R R P01", "S01 R", 88),  # ZeRO-1
        ("R R", "S01 R", "S01 R", 60),  # ZeRO-2
        ("S01 R", "S01 R", "S01 R", 32),  # ZeRO-3
    ],
)
def test_model_state_per_device(weight: str, gradient: str, state: str, mebibytes: int) -> None:
    # 2 bytes of parameter, 2 of gradient, 12 of optimizer state each for 16.8 M parameters.
    atoms = _core.TensorAtoms([4096, 4096], [[0], [1]])

    def local(text: str, element_bytes: int) -> int:
        rows, cols = _core.local_shape(atoms, _core.parse_spec(atoms, text, 2), MESH)
        return rows * cols * element_bytes

    assert local(weight, 2) + local(gradient, 2) + local(state, 12) == mebibytes * MIB


def test_device_placement() -> None:
    # G(4 i + j) holds rows block i of 2 and columns block j of 4: shards of (2048, 1024).
    atoms = _core.TensorAtoms([4096, 4096], [[0], [1]])
    spec = _core.parse_spec(atoms, "S0 S1", 2)
    assert _core.local_shape(atoms, spec, MESH) == [2048, 1024]
    mesh = byte_cluster(MESH).mesh(MESH)
    for i in range(2):
        for j in range(4):
            assert list(mesh.coordinate(4 * i + j)) == [i, j]
    assert mesh.group(0, 1) == [0, 1, 2, 3]
    assert mesh.group(0, 0) == [0, 4]
