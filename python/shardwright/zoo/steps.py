"""The training steps of the zoo, written for one device as a user would write them."""

import torch
import torch.nn.functional as F
from torch import nn


def language_model_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """One step of next-token training with clipped gradients.

    Args:
        model: Maps int64 tokens `[batch, seq]` to logits `[batch, seq, vocab]`.
        optimizer: Any optimizer over the model's parameters.
        tokens: int64 `[batch, seq]`.
        targets: int64 `[batch, seq]`.

    Returns:
        The mean cross-entropy in nats, of before the update.
    """
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def image_classification_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """One step of image classification with clipped gradients.

    Args:
        model: Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
        optimizer: Any optimizer over the model's parameters.
        images: Floating point `[batch, channels, height, width]`.
        labels: int64 `[batch]`.

    Returns:
        The mean cross-entropy in nats, of before the update.
    """
    loss = F.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def regression_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """One step of least squares, without clipping.

    Args:
        model: Maps `[batch, features]` to `[batch, outputs]`.
        optimizer: Any optimizer over the model's parameters.
        inputs: Floating point `[batch, features]`.
        targets: Floating point `[batch, outputs]`.

    Returns:
        The mean squared error, of before the update.
    """
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss


def linear_loss_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """One step on a loss that is linear in the outputs, so that integers stay integers.

    Args:
        model: Maps `inputs` to outputs of the shape of `weights`.
        optimizer: Any optimizer over the model's parameters.
        inputs: What the model takes.
        weights: The gradient of the loss with respect to the outputs, times their number.

    Returns:
        The mean of outputs times weights, of before the update.
    """
    outputs: torch.Tensor = model(inputs)
    loss = (outputs * weights).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss
