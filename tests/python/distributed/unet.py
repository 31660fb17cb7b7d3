"""A U-Net: convolutions down and up; what each level makes on the way down is read on the way up.

In stages both skip connections pass over stages between. It comes in two forms: one of float64, and
one of small integers whose every float32 number is exact (the reasons are those of
`shardwright.zoo.integer`).
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.zoo.integer import bounded_relu
from shardwright.zoo.steps import linear_loss_step
from shardwright.zoo.target import Target


class UNet(nn.Module):
    """Two levels below the image; images of `channels` channels in and out.

    Args:
        channels: of the first level; each level below has twice as many.
        activation: after every convolution but the last.
    """

    def __init__(self, channels: int, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.enter = nn.Conv2d(channels, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.bottom = nn.Conv2d(2 * channels, 4 * channels, 3, padding=1)
        self.rise = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, stride=2)
        self.merge = nn.Conv2d(4 * channels, 2 * channels, 3, padding=1)
        self.last_rise = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.last_merge = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.head = nn.Conv2d(channels, channels, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, channels, height, width]` to the same shape; sizes divide by 4."""
        act = self.activation
        wide = act(self.enter(images))
        half = act(self.down(F.max_pool2d(wide, 2)))
        x = act(self.bottom(F.max_pool2d(half, 2)))
        x = act(self.merge(torch.cat((half, act(self.rise(x))), dim=1)))
        x = act(self.last_merge(torch.cat((wide, act(self.last_rise(x))), dim=1)))
        result: torch.Tensor = self.head(x)
        return result


def clipped_regression_step(model, optimizer, inputs, targets):
    """Least squares, clipped by the global norm."""
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def unet(batch_size: int = 8, dtype: torch.dtype = torch.float64) -> Target:
    """A step of least squares and its arguments `(model, optimizer, images, targets)`."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = UNet(8, torch.tanh).to(dtype)
    shape = (batch_size, 8, 16, 16)
    images, targets = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return clipped_regression_step, (model, optimizer, images, targets)


def unet_integer(
    batch_size: int = 8, momentum: float = 0.0, dtype: torch.dtype = torch.float32
) -> Target:
    """An exact step and its arguments `(model, optimizer, images, weights)`."""
    generator = torch.Generator().manual_seed(0)
    model = UNet(8, partial(bounded_relu, limit=2)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            density = 0.0 if parameter.dim() == 1 else min(0.5, 3.0 / parameter[0].numel())
            parameter.copy_(_small_integers(parameter.shape, density, generator))
    shape = (batch_size, 8, 16, 16)
    images = _small_integers(shape, 0.1, generator).to(dtype)
    weights = _small_integers(shape, 0.01, generator).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(weights.numel()), momentum=momentum)
    return linear_loss_step, (model, optimizer, images, weights)


def _small_integers(
    shape: torch.Size | tuple[int, ...], density: float, generator: torch.Generator
) -> torch.Tensor:
    """0, or with probability `density` one of -1 and 1."""
    signs = torch.randint(2, tuple(shape), generator=generator) * 2 - 1
    return signs * (torch.rand(tuple(shape), generator=generator) < density)
