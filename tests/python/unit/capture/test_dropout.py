"""Dropout masks depend on seed, call and position alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright.capture import capture, read_inputs, sort_arguments

drop = torch.ops.shardwright.dropout


def seed(value: int = 7) -> Tensor:
    return torch.tensor(value)


def test_share_of_dropped_elements_and_scale() -> None:
    x = torch.ones(200, 500)
    out = drop(x, seed(), 0, 0.3)
    share = float((out == 0).float().mean())
    # standard deviation of the share: sqrt(0.3 * 0.7 / 1e5) = 0.0014
    assert abs(share - 0.3) < 0.006
    assert torch.allclose(out[out != 0], torch.tensor(1 / 0.7))
    assert abs(float((out == 0).float().mean(0).std()) - (0.21 / 200) ** 0.5) < 0.005


@pytest.mark.parametrize("change", ["seed", "stream", "row"])
def test_masks_differ_independently(change: str) -> None:
    x = torch.ones(400, 400)
    first = drop(x, seed(), 0, 0.5) == 0
    second = {
        "seed": drop(x, seed(8), 0, 0.5) == 0,
        "stream": drop(x, seed(), 1, 0.5) == 0,
        "row": first.roll(1, 0),
    }[change]
    # equal in half of 160,000 places; standard deviation 0.00125
    assert abs(float((first == second).float().mean()) - 0.5) < 0.006


def test_shards_draw_their_part_of_the_whole_mask() -> None:
    x = torch.rand(6, 10, 4)
    whole = drop(x, seed(), 3, 0.5)
    part = drop(x[2:4, 5:], seed(), 3, 0.5, [6, 10, 4], [2, 5, 0])
    assert torch.equal(part, whole[2:4, 5:])


def dropout_step(model: Any, optimizer: Any, x: Tensor) -> Any:
    hidden = F.dropout(model(x), 0.5)
    loss = F.dropout(hidden, 0.25).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss, hidden


def make(step: Any = dropout_step) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(8, 8).double()
    return step, (model, torch.optim.SGD(model.parameters(), lr=1.0), torch.rand(5, 8).double())


def test_backward_uses_the_forward_mask() -> None:
    step, args = make()
    graph = capture(step, args)
    arguments = sort_arguments(step, args, {})
    inputs = read_inputs(graph, arguments, seed=11)
    outputs = graph.run_reference(inputs)
    results = [v for v, o in zip(outputs, graph.outputs, strict=True) if o.kind == "result"]
    weight, bias = inputs[0], inputs[1]
    x = args[2]
    first = drop(torch.ones(5, 8).double(), seed(11), 0, 0.5)
    second = drop(torch.ones(5, 8).double(), seed(11), 1, 0.25)
    hidden = (x @ weight.T + bias) * first
    assert torch.allclose(results[1], hidden)
    assert torch.allclose(results[0], (hidden * second).sum())
    # d loss / d weight = (mask1 * mask2)^T x, lr = 1
    new_weight = outputs[[o.updates for o in graph.outputs].index(0)]
    assert torch.allclose(weight - new_weight, (first * second).T @ x)


def test_masks_change_with_the_seed_without_capture() -> None:
    step, args = make()
    graph = capture(step, args)
    arguments = sort_arguments(step, args, {})
    losses = {float(graph.run_reference(read_inputs(graph, arguments, s))[-2]) for s in range(4)}
    assert len(losses) == 4


def test_checkpointed_dropout_draws_the_same_mask_again() -> None:
    from torch.utils.checkpoint import checkpoint

    def step(model: Any, optimizer: Any, x: Tensor) -> Tensor:
        body = lambda x: F.dropout(model(F.dropout(x, 0.5)), 0.5)  # noqa: E731
        loss = checkpoint(body, x, use_reentrant=False).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graph = capture(*make(step))
    streams = [n.args[2] for n in graph.graph_module.graph.nodes if "dropout" in str(n.target)]
    assert set(streams) == {0, 1}
    assert streams.count(0) == 2  # forward and recomputation


def test_evaluation_mode_drops_nothing() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x)

    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
    graph = capture(step, (model, torch.rand(5, 8)))
    assert not [n for n in graph.graph_module.graph.nodes if "dropout" in str(n.target)]
    assert "rng" not in {spec.kind for spec in graph.inputs}


def test_channel_dropout_and_attention_dropout_are_captured() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        heads = model(x).reshape(1, 2, 5, 4)
        attended = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        return F.dropout2d(attended.reshape(1, 5, 2, 4), 0.5)

    graph = capture(step, (nn.Linear(8, 8), torch.rand(5, 8)))
    streams = [n.args[2] for n in graph.graph_module.graph.nodes if "dropout" in str(n.target)]
    assert streams == [0, 1]
