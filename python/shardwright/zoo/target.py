"""What a zoo target is, and the seeded pieces that every family builds it from.

A target is `(step, args)`: a training step written for one device and the arguments of its first
call. On the meta device nothing is allocated, so the largest published models are made in a second.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

Step = Callable[..., torch.Tensor]
Target = tuple[Step, tuple[Any, ...]]
Device = str | torch.device

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def build_module(
    factory: Callable[[], ModuleT], *, device: Device, dtype: torch.dtype, seed: int
) -> ModuleT:
    """Builds a module on `device` with weights that depend on `seed` alone.

    The caller's random state is left as it was.

    Args:
        factory: Makes the module; called once, with `device` as the default device.
        device: Where parameters and buffers live.
        dtype: Type of floating-point parameters and buffers after initialisation.
        seed: Seed of the weights; without effect on the meta device.

    Returns:
        The module, in training mode.
    """
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        module = factory()
    return module.to(dtype)


def token_batch(
    batch_size: int, seq_len: int, vocab: int, *, device: Device, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and next-token targets, both int64 `[batch, seq]`, uniform over `vocab`."""
    window = _random_integers((batch_size, seq_len + 1), vocab, device=device, seed=seed)
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def image_batch(
    batch_size: int,
    channels: int,
    image_size: int,
    num_classes: int,
    *,
    device: Device,
    dtype: torch.dtype,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns normal images `[batch, channels, height, width]` and int64 labels `[batch]`."""
    shape = (batch_size, channels, image_size, image_size)
    images = normal_tensor(shape, device=device, dtype=dtype, seed=seed)
    return images, _random_integers((batch_size,), num_classes, device=device, seed=seed + 1)


def normal_tensor(
    shape: tuple[int, ...], *, device: Device, dtype: torch.dtype, seed: int
) -> torch.Tensor:
    """Returns standard normal values drawn on the CPU from `seed`; empty on the meta device."""
    if torch.device(device).type == "meta":
        return torch.empty(shape, device=device, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def _random_integers(
    shape: tuple[int, ...], high: int, *, device: Device, seed: int
) -> torch.Tensor:
    if torch.device(device).type == "meta":
        return torch.empty(shape, device=device, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(high, shape, generator=generator).to(device)
