"""Training steps whose every float32 number is exact, for bitwise comparison.

Why they are exact. A float32 holds every multiple of a power of two `g` up to `2**24 * g`, so a sum
of such multiples is exact, in any order and any grouping, while the sum of the absolute values
stays below that. Here

* weights, inputs and loss weights are small integers, most of them zero;
* there are only products, sums, ReLUs and maxima, no softmax, no norm, no root;
* the activation `relu(x) - relu(x - limit)` keeps what a layer hands on within `0 .. limit`;
* the loss is a mean over a power-of-two number of elements and linear in the outputs, so gradients
  are integers over that number, and the learning rate is that number (times the pixels that a mean
  pool divides by), so updates are integers again.

All that remains is that three steps keep the numbers small, which `tests/python/unit/zoo/
test_integer.py` checks for each product and sum of the traced steps. Every dim divides by 8.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.zoo.steps import linear_loss_step
from shardwright.zoo.target import Device, Target
from shardwright.zoo.wide_resnet import WideResNet


def bounded_relu(x: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns `x` clamped to `0 .. limit`, from ReLUs alone."""
    return F.relu(x) - F.relu(x - limit)


class IntegerMLP(nn.Module):
    """Linear layers `hidden -> inner -> ... -> hidden` with bounded ReLUs between."""

    def __init__(self, *, hidden: int, inner: int, layers: int) -> None:
        """Creates the layers, with biases."""
        super().__init__()
        widths = [hidden, *[inner] * (layers - 1), hidden]
        self.layers = nn.ModuleList(
            nn.Linear(widths[index], widths[index + 1]) for index in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, hidden]` to the same shape."""
        for index, layer in enumerate(self.layers):
            x = layer(bounded_relu(x, 2) if index > 0 else x)
        return x


class IntegerAttention(nn.Module):
    """Causal attention whose weights are bounded ReLUs of the scores instead of a softmax."""

    def __init__(self, hidden: int, heads: int) -> None:
        """Creates the fused query, key and value product and the output product."""
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        batch, seq, hidden = x.shape
        shape = (batch, seq, self.heads, hidden // self.heads)
        q, k, v = self.qkv(x).split(hidden, dim=-1)
        q = q.view(shape).transpose(1, 2)
        k = k.view(shape).transpose(1, 2)
        v = v.view(shape).transpose(1, 2)
        mask = torch.ones(seq, seq, dtype=x.dtype, device=x.device).tril()
        weights = bounded_relu(q @ k.transpose(-2, -1), 1) * mask
        y: torch.Tensor = self.out((weights @ v).transpose(1, 2).reshape(batch, seq, hidden))
        return y


class IntegerBlock(nn.Module):
    """Attention and feed-forward on bounded copies, added to the residual stream."""

    def __init__(self, hidden: int, heads: int) -> None:
        """Creates the attention and the two feed-forward products."""
        super().__init__()
        self.attention = IntegerAttention(hidden, heads)
        self.up = nn.Linear(hidden, 2 * hidden)
        self.down = nn.Linear(2 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        x = x + self.attention(bounded_relu(x, 1))
        y: torch.Tensor = x + self.down(bounded_relu(self.up(bounded_relu(x, 1)), 1))
        return y


class IntegerGPT(nn.Module):
    """A GPT without softmax and norms, with the head tied to the token embedding."""

    def __init__(self, *, vocab: int, seq_len: int, hidden: int, layers: int, heads: int) -> None:
        """Creates embeddings, blocks and the tied head."""
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, hidden)
        self.position_embedding = nn.Embedding(seq_len, hidden)
        self.layers = nn.ModuleList(IntegerBlock(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps int64 tokens `[batch, seq]` to outputs `[batch, seq, vocab]`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for layer in self.layers:
            x = layer(x)
        outputs: torch.Tensor = self.head(bounded_relu(x, 1))
        return outputs


def mlp_integer(
    *,
    hidden: int = 16,
    inner: int = 32,
    layers: int = 3,
    batch_size: int = 16,
    momentum: float = 0.0,
    device: Device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Target:
    """Returns an exact MLP step and its arguments `(model, optimizer, inputs, weights)`.

    `momentum` must be 0 or 1 for the step to stay exact.
    """
    generator = torch.Generator().manual_seed(seed)
    model = IntegerMLP(hidden=hidden, inner=inner, layers=layers)
    inputs = _small_integers((batch_size, hidden), 0.5, generator)
    weights = _small_integers((batch_size, hidden), 0.1, generator)
    _fill_with_signs(model, 2.0, generator)
    return _target(model, inputs, weights, float(weights.numel()), momentum, device, dtype)


def gpt_integer(
    *,
    vocab: int = 32,
    seq_len: int = 8,
    hidden: int = 16,
    layers: int = 2,
    heads: int = 8,
    batch_size: int = 8,
    momentum: float = 0.0,
    device: Device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Target:
    """Returns an exact GPT step and its arguments `(model, optimizer, tokens, weights)`.

    `momentum` must be 0 or 1 for the step to stay exact.
    """
    generator = torch.Generator().manual_seed(seed)
    model = IntegerGPT(vocab=vocab, seq_len=seq_len, hidden=hidden, layers=layers, heads=heads)
    tokens = torch.randint(vocab, (batch_size, seq_len), generator=generator)
    weights = _small_integers((batch_size, seq_len, vocab), 0.03, generator)
    _fill_with_signs(model, 2.0, generator)
    return _target(model, tokens, weights, float(weights.numel()), momentum, device, dtype)


def wide_resnet_integer(
    *,
    channels: int = 8,
    width: int = 2,
    image_size: int = 16,
    num_classes: int = 16,
    batch_size: int = 8,
    momentum: float = 0.0,
    device: Device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Target:
    """Returns an exact Wide-ResNet step and its arguments `(model, optimizer, images, weights)`.

    The images have 8 channels, and there is no batch norm. `momentum` must be 0 or 1 for the step
    to stay exact.
    """
    generator = torch.Generator().manual_seed(seed)
    model = WideResNet(
        stage_blocks=(1, 1),
        channels=channels,
        width=width,
        num_classes=num_classes,
        image_channels=8,
        norm=lambda _: nn.Identity(),
        activation=partial(bounded_relu, limit=4),
    )
    images = _small_integers((batch_size, 8, image_size, image_size), 0.1, generator)
    weights = _small_integers((batch_size, num_classes), 0.1, generator)
    _fill_with_signs(model, 3.0, generator)
    pooled_pixels = (image_size // 8) ** 2
    lr = float(weights.numel() * pooled_pixels)
    return _target(model, images, weights, lr, momentum, device, dtype)


def _fill_with_signs(model: nn.Module, per_output: float, generator: torch.Generator) -> None:
    """Sets weights to -1, 0 or 1, about `per_output` of them per output not zero; biases to 0."""
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                density = min(0.5, per_output / param[0].numel())
                param.copy_(_small_integers(tuple(param.shape), density, generator))
            else:
                param.zero_()


def _target(
    model: nn.Module,
    inputs: torch.Tensor,
    weights: torch.Tensor,
    lr: float,
    momentum: float,
    device: Device,
    dtype: torch.dtype,
) -> Target:
    if momentum not in (0.0, 1.0):
        raise ValueError(f"momentum must be 0 or 1 for an exact step, got {momentum}")
    model = model.to(device=device, dtype=dtype)
    if inputs.is_floating_point():
        inputs = inputs.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return linear_loss_step, (model, optimizer, inputs.to(device), weights.to(device, dtype))


def _small_integers(
    shape: tuple[int, ...], density: float, generator: torch.Generator
) -> torch.Tensor:
    """Returns float32 values: 0, or with probability `density` one of -1 and 1."""
    signs = torch.randint(2, shape, generator=generator) * 2 - 1
    present = torch.rand(shape, generator=generator) < density
    return (signs * present).to(torch.float32)
