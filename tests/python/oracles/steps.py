"""Steps and clusters of the literature's test cases, on meta tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright.capture import StepGraph, capture
from shardwright.cluster import CollectiveConstants

Step = Callable[..., Any]


def alpa_cluster(
    mesh: Sequence[int], beta: Sequence[float] | None = None, forbidden: Sequence[str] = ()
) -> sw.Cluster:
    """Alpha 1, beta 1 per byte unless given, Alpa's constants per collective; compute is free."""
    return sw.Cluster.abstract(
        mesh,
        alpha_us=[1.0] * len(mesh),
        beta_us_per_byte=list(beta or [1.0] * len(mesh)),
        constants=CollectiveConstants.alpa(forbidden=forbidden),
    )


def byte_cluster(
    mesh: Sequence[int], beta: Sequence[float] | None = None, alpha: float = 0.0
) -> sw.Cluster:
    """Cost is bytes on the ring, and alpha per collective."""
    return sw.Cluster.abstract(
        mesh,
        alpha_us=[alpha] * len(mesh),
        beta_us_per_byte=list(beta or [1.0] * len(mesh)),
    )


def squared_error_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> None:
    """One step that returns nothing, so that no scalar is reduced for the user."""
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def forward_step(model: nn.Module, x: Tensor) -> Tensor:
    """The model's output, wanted whole by the user."""
    return model(x)  # type: ignore[no-any-return]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def training(
    model: nn.Module,
    inputs: Sequence[Tensor],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    step: Step = squared_error_step,
) -> StepGraph:
    model = model.to("meta")
    return capture(step, (model, optimizer(model), *[x.to("meta") for x in inputs]))


def forward(model: nn.Module, *inputs: Tensor) -> StepGraph:
    return capture(forward_step, (model.to("meta"), *[x.to("meta") for x in inputs]))


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def linear_stack(
    num_layers: int, size: int, *, bias: bool = False, relu: bool = False
) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        layers.append(nn.Linear(size, size, bias=bias))
        if relu:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def counts(plan: sw.Plan) -> dict[str, int]:
    return {kind: count.count for kind, count in plan.certificate.collectives.items()}


def ring_bytes(plan: sw.Plan) -> float:
    """Bytes that rings move through each device in one step."""
    found = plan.certificate.collectives.values()
    return sum(count.ring_bytes_per_device for count in found)


def all_reduce(num_bytes: float, ranks: int, beta: float = 1.0) -> float:
    """Price of an all-reduce with Alpa's constants, by hand."""
    return 1 + 2 * beta * (ranks - 1) / ranks * num_bytes + 0.01


class Attention(nn.Module):
    """Self-attention without bias; x is [batch, seq, hidden]."""

    def __init__(self, hidden: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, hidden, bias=bias)
        self.k = nn.Linear(hidden, hidden, bias=bias)
        self.v = nn.Linear(hidden, hidden, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape

        def by_head(y: Tensor) -> Tensor:
            return y.view(batch, seq, self.heads, hidden // self.heads).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            by_head(self.q(x)), by_head(self.k(x)), by_head(self.v(x))
        )
        return self.out(y.transpose(1, 2).reshape(batch, seq, hidden))  # type: ignore[no-any-return]


class BertLayer(nn.Module):
    """Attention and a 4x feed-forward, each with bias, residual and layer norm after it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, bias=True)
        self.norm1 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]
