"""In-place calls, views and assignments leave the values that eager execution leaves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardwright import CaptureError
from shardwright.capture import StepGraph, capture

Check = Callable[..., StepGraph]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def write_through_transpose(x: Tensor) -> Tensor:
    y = x.clone()
    y.t()[1:3].mul_(2.0)
    return y


def write_base_read_view(x: Tensor) -> Tensor:
    y = x.clone()
    view = y.view(-1)[3:7]
    y.add_(1.0)
    y[0] = 5.0
    return torch.cat([view, y.flatten()])


def write_view_read_other_view(x: Tensor) -> Tensor:
    y = x.clone()
    first, second = y.permute(1, 0), y.unsqueeze(0)
    first.select(0, 1).copy_(x[:, 0])
    second.squeeze(0).diagonal().fill_(3.0)
    return first * second[0]


def in_place_views(x: Tensor) -> Tensor:
    y = x.clone()
    y.unsqueeze_(0)
    y.mul_(2.0)
    y.squeeze_(0).t_()
    y.add_(x.t())
    return y


def out_argument(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch.mul(x, 3.0, out=y)
    torch.add(y, x, alpha=2.0, out=y)
    return y


def chunks_written(x: Tensor) -> Tensor:
    y = x.clone()
    a, b = y.chunk(2, 1)
    a.zero_()
    for row in y.unbind(0)[1:]:
        row[2:] = row[2:] * 2
    return y + b.sum()


def masked_and_indexed(x: Tensor) -> Tensor:
    y = x.clone()
    y.masked_fill_(x > 0, -1.0)
    y[torch.tensor([0, 2]), torch.tensor([1, 3])] = 7.0
    y.index_add_(0, torch.tensor([1, 1]), x[:2])
    y.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), 2.0)
    return y


def integer_in_place_keeps_dtype(x: Tensor) -> Tensor:
    count = torch.zeros(4, dtype=torch.float32)
    count += x[0]
    count /= 3
    return count


def foreach_lists(x: Tensor) -> Tensor:
    parts = [x.clone(), x.t().clone()]
    torch._foreach_mul_(parts, 2.0)
    torch._foreach_add_(parts, [x, x], alpha=0.5)
    norms = torch._foreach_norm(parts)
    return parts[0] + parts[1] * norms[0]


def set_data(x: Tensor) -> Tensor:
    y = x.clone()
    y.data = x * 2
    y.data.add_(1.0)
    return y


PROGRAMS = [
    write_through_transpose, write_base_read_view, write_view_read_other_view, in_place_views,
    out_argument, chunks_written, masked_and_indexed, integer_in_place_keeps_dtype, foreach_lists,
    set_data,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(check_parity: Check, program: Callable[[Tensor], Tensor]) -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            return program(model(x))

    def make() -> Any:
        torch.manual_seed(0)
        return step, (nn.Linear(4, 4).double(), seeded(4, 4))

    check_parity(make, tolerance=0.0)


def test_in_place_under_autograd(check_parity: Check) -> None:
    def step(model: Any, optimizer: Any, x: Tensor) -> Tensor:
        y = model(x) * 2
        y[:, 1:3].mul_(x[:, :2])
        y.mul_(0.5)
        z = y.t()
        z[0].add_(y[:, 3])
        loss = z.square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 4).double()
        return step, (model, torch.optim.SGD(model.parameters(), lr=0.01), seeded(4, 4))

    check_parity(make)


class Moving(nn.Module):
    """A buffer written in place, one that is assigned anew, and a cache kept on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("constant", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.mean.lerp_(y.detach().mean(0), 0.1)
        self.last = y.detach()[0] + self.last
        self.cache = y.detach()
        return y + self.mean * self.constant


def test_buffers(check_parity: Check) -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x).sum()

    def make() -> Any:
        torch.manual_seed(0)
        return step, (Moving().double(), seeded(4, 4))

    graph = check_parity(make)
    updated = {graph.inputs[o.updates].name for o in graph.outputs if o.updates is not None}
    assert updated == {"mean", "last"}


def test_what_the_step_stores_on_modules_is_taken_away_again() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x).sum()

    model = Moving().double()
    capture(step, (model, seeded(4, 4)))
    assert not hasattr(model, "cache")
    assert torch.equal(model.last, torch.zeros(4).double())


def test_weights_moved_outside_of_the_optimizer(check_parity: Check) -> None:
    def step(model: Any, average: Any, optimizer: Any, x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, q in zip(model.parameters(), average.parameters(), strict=True):
                q.mul_(0.9).add_(p, alpha=0.1)
            model.weight.data = model.weight.clamp(-0.4, 0.4)
        return loss

    def make() -> Any:
        torch.manual_seed(0)
        model, average = nn.Linear(4, 4).double(), nn.Linear(4, 4).double().requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return step, (model, average, optimizer, seeded(4, 4))

    check_parity(make)


def test_lr_set_inside_the_step(check_parity: Check) -> None:
    def step(model: Any, optimizer: Any, x: Tensor, lr: float) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 4).double()
        return step, (model, torch.optim.AdamW(model.parameters(), lr=1.0), seeded(4, 4), 0.01)

    check_parity(make)


def test_lr_read_by_the_step_is_a_guard() -> None:
    def step(model: Any, optimizer: Any, x: Tensor) -> Any:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return optimizer.param_groups[0]["lr"]

    model = nn.Linear(4, 4)
    graph = capture(step, (model, torch.optim.AdamW(model.parameters(), lr=0.5), torch.ones(4, 4)))
    assert graph.guards == {"optimizer.param_groups[0].lr": 0.5}
    assert graph.result_tree.rebuild([]) == 0.5


def test_writing_into_a_tensor_of_the_closure_is_refused() -> None:
    counter = torch.zeros(())

    def step(model: Any, x: Tensor) -> Tensor:
        counter.add_(1.0)
        return model(x).sum()

    with pytest.raises(CaptureError, match="E106"):
        capture(step, (nn.Linear(4, 4), torch.ones(4, 4)))
    assert float(counter) == 0.0
