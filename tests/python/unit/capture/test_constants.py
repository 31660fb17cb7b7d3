"""Uniform tensors fold into numbers without changing a bit of the result."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardwright.capture import StepGraph, capture

Check = Callable[..., StepGraph]


def names(graph: StepGraph) -> list[str]:
    return [str(n.target) for n in graph.graph_module.graph.nodes if n.op == "call_function"]


def test_gradient_of_a_mean_square_is_one_factor() -> None:
    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = capture(step, (model, optimizer, torch.ones(4, 8), torch.ones(4, 8)))
    assert "aten.full.default" not in names(graph)
    assert "aten.expand.default" not in names(graph)
    (factor,) = [
        n.args[1]
        for n in graph.graph_module.graph.nodes
        if n.meta["phase"] == "backward" and n.target is torch.ops.aten.mul.Tensor
    ]
    assert factor == 1 / 32  # the mean over 4 * 8 elements


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_stay_bitwise_equal(check_parity: Check, dtype: torch.dtype) -> None:
    def step(model: Any, x: Tensor) -> Any:
        y = model(x)
        third = torch.full((4,), 0.1, dtype=x.dtype) / 3
        total = torch.zeros((), dtype=x.dtype)
        total += y.sum()
        return y * third, y / torch.full((4, 4), 0.3, dtype=x.dtype), total, y * torch.ones(4, 4)

    def make() -> Any:
        torch.manual_seed(0)
        return step, (nn.Linear(4, 4, bias=False).to(dtype), torch.rand(4, 4).to(dtype))

    torch.manual_seed(0)
    x = torch.rand(4, 4).to(dtype)

    def same_batch() -> Any:
        step, (model, _) = make()
        return step, (model, x)

    graph = check_parity(same_batch, tolerance=0.0)
    assert "aten.mul.Tensor" in names(graph)


def test_a_factor_that_widens_the_type_stays() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x) * torch.ones(4, dtype=torch.float64)

    graph = capture(step, (nn.Linear(4, 4), torch.ones(2, 4)))
    assert graph.output_nodes[0].meta["val"].dtype == torch.float64
