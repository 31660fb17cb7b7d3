"""A Llama-style language model: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.zoo.optimizers import OptimizerName, make_optimizer
from shardwright.zoo.steps import language_model_step
from shardwright.zoo.target import Device, Target, build_module, token_batch
from shardwright.zoo.transformer import init_transformer_weights


def rotary_tables(seq_len: int, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosine and sine of the rotary angles, both fp32 `[seq, head_dim]`.

    Source: RoFormer (Su et al., 2021), equation 15, with the two halves of a head as the pairs.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    positions = torch.arange(seq_len, dtype=torch.float32)
    angles = torch.outer(positions, theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns `[batch, heads, seq, head_dim]` by the tables `[seq, head_dim]`."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class GroupedQueryAttention(nn.Module):
    """Causal attention in which several query heads share one key and value head.

    Args:
        hidden: Width.
        heads: Number of query heads.
        kv_heads: Number of key and value heads, a divisor of `heads`.
    """

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        """Creates the query, key, value and output products."""
        super().__init__()
        if hidden % heads or heads % kv_heads:
            raise ValueError(
                f"hidden {hidden} must be a multiple of heads {heads}, "
                f"and heads of kv_heads {kv_heads}"
            )
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        batch, seq, hidden = x.shape
        q = self.q(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, self._repeat(k), self._repeat(v), is_causal=True)
        output: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, seq, hidden))
        return output

    def _repeat(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, seq, head_dim = x.shape
        group = self.heads // self.kv_heads
        shape = (batch, self.kv_heads, group, seq, head_dim)
        return x.unsqueeze(2).expand(shape).reshape(batch, self.heads, seq, head_dim)


class SwiGLU(nn.Module):
    """A gated feed-forward: `down(silu(gate(x)) * up(x))`.

    Args:
        hidden: Width of input and output.
        inner: Width between.
    """

    def __init__(self, hidden: int, inner: int) -> None:
        """Creates the three products, without biases."""
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[..., hidden]` to the same shape."""
        y: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class LlamaBlock(nn.Module):
    """Attention and feed-forward on RMS-normalised copies, added to the residual stream."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inner: int) -> None:
        """Creates two norms, the attention and the feed-forward."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.attention = GroupedQueryAttention(hidden, heads, kv_heads)
        self.feed_forward_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.feed_forward = SwiGLU(hidden, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Llama(nn.Module):
    """A decoder-only language model in the manner of Llama.

    Args:
        vocab: Number of tokens.
        seq_len: Largest number of positions.
        hidden: Width.
        layers: Number of blocks.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        inner: Width inside the feed-forward.
        theta: Base of the rotary angles.
        tied: Whether the output head is the token embedding.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self,
        *,
        vocab: int,
        seq_len: int,
        hidden: int,
        layers: int,
        heads: int,
        kv_heads: int,
        inner: int,
        theta: float,
        tied: bool,
    ) -> None:
        """Creates embedding, rotary tables, blocks, final norm and head."""
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, hidden)
        cos, sin = rotary_tables(seq_len, hidden // heads, theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.layers = nn.ModuleList(
            LlamaBlock(hidden, heads, kv_heads, inner) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.apply(init_transformer_weights)
        if tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps int64 tokens `[batch, seq]` to logits `[batch, seq, vocab]`."""
        seq = tokens.shape[1]
        cos, sin = self.cos[:seq], self.sin[:seq]
        x = self.token_embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def llama(
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    inner: int,
    vocab: int,
    seq_len: int,
    batch_size: int,
    theta: float = 500000.0,
    tied: bool = False,
    optimizer: OptimizerName = "adamw",
    lr: float = 3e-4,
    device: Device = "meta",
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> Target:
    """Returns a Llama training step and its arguments `(model, optimizer, tokens, targets)`.

    Half-precision parameters come with `MixedPrecisionAdamW`, fp32 and fp64 ones with AdamW.
    """
    model = build_module(
        lambda: Llama(
            vocab=vocab,
            seq_len=seq_len,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            inner=inner,
            theta=theta,
            tied=tied,
        ),
        device=device,
        dtype=dtype,
        seed=seed,
    )
    tokens, targets = token_batch(batch_size, seq_len, vocab, device=device, seed=seed)
    return language_model_step, (model, make_optimizer(model, optimizer, lr), tokens, targets)


# Source of the shapes: Llama 3 (Meta, 2024), table 3; one 8192-token sequence for each of 64
# devices.
llama3_8b = partial(
    llama,
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    inner=14336,
    vocab=128256,
    seq_len=8192,
    batch_size=64,
)

llama_tiny = partial(
    llama,
    hidden=64,
    layers=2,
    heads=16,
    kv_heads=8,
    inner=128,
    vocab=64,
    seq_len=16,
    batch_size=8,
    lr=1e-2,
    device="cpu",
    dtype=torch.float32,
)
