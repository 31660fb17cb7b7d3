"""A multilayer perceptron of any depth and width, trained by least squares."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.zoo.optimizers import OptimizerName, make_optimizer
from shardwright.zoo.steps import regression_step
from shardwright.zoo.target import Device, Target, build_module, normal_tensor


class MLP(nn.Module):
    """Linear layers `hidden -> inner -> hidden -> ...` with a ReLU between each two.

    Args:
        hidden: Width of the input, and of the output if `layers` is even.
        inner: Width after every odd layer.
        layers: Number of linear layers.
        bias: Whether the layers have biases.
        relu: Whether there are ReLUs.
    """

    def __init__(self, *, hidden: int, inner: int, layers: int, bias: bool, relu: bool) -> None:
        """Creates the layers."""
        super().__init__()
        widths = [inner if index % 2 else hidden for index in range(layers + 1)]
        self.relu = relu
        self.layers = nn.ModuleList(
            nn.Linear(widths[index], widths[index + 1], bias=bias) for index in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, hidden]` to `[batch, hidden]`, or `[batch, inner]` if layers is odd."""
        for index, layer in enumerate(self.layers):
            if self.relu and index > 0:
                x = F.relu(x)
            x = layer(x)
        return x


def mlp(
    *,
    hidden: int = 1024,
    inner: int | None = None,
    layers: int = 2,
    batch_size: int = 1024,
    bias: bool = True,
    relu: bool = True,
    optimizer: OptimizerName = "adamw",
    lr: float = 1e-3,
    device: Device = "meta",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Target:
    """Returns an MLP training step and its arguments `(model, optimizer, inputs, targets)`.

    Args:
        hidden: Width of the input.
        inner: Width after every odd layer; None means `hidden`.
        layers: Number of linear layers.
        batch_size: Rows of the batch.
        bias: Whether the layers have biases.
        relu: Whether there are ReLUs between the layers.
        optimizer: `adamw` or `sgd`.
        lr: Learning rate.
        device: Where everything lives.
        dtype: Type of parameters and batch.
        seed: Seed of weights and batch.
    """
    inner = hidden if inner is None else inner
    model = build_module(
        lambda: MLP(hidden=hidden, inner=inner, layers=layers, bias=bias, relu=relu),
        device=device,
        dtype=dtype,
        seed=seed,
    )
    outputs = inner if layers % 2 else hidden
    inputs = normal_tensor((batch_size, hidden), device=device, dtype=dtype, seed=seed)
    targets = normal_tensor((batch_size, outputs), device=device, dtype=dtype, seed=seed + 1)
    return regression_step, (model, make_optimizer(model, optimizer, lr), inputs, targets)


mlp_tiny = partial(
    mlp, hidden=16, inner=64, layers=4, batch_size=16, lr=1e-2, device="cpu", dtype=torch.float32
)
