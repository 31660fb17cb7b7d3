"""The transformer block of GPT, GShard-MoE and ViT, and the language model of the first two."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    """Multi-head self-attention with one fused query, key and value product.

    Args:
        hidden: Width, a multiple of `heads`.
        heads: Number of heads.
        causal: Whether a position sees only itself and what is before it.
    """

    def __init__(self, hidden: int, heads: int, *, causal: bool) -> None:
        """Creates `qkv` (hidden to 3 hidden) and `out` (hidden to hidden)."""
        super().__init__()
        if hidden % heads:
            raise ValueError(f"hidden {hidden} is not a multiple of heads {heads}")
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        batch, seq, hidden = x.shape
        shape = (batch, seq, self.heads, hidden // self.heads)
        q, k, v = self.qkv(x).split(hidden, dim=-1)
        q = q.view(shape).transpose(1, 2)
        k = k.view(shape).transpose(1, 2)
        v = v.view(shape).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        output: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, seq, hidden))
        return output


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them.

    Args:
        hidden: Width of input and output.
        inner: Width between the two layers.
    """

    def __init__(self, hidden: int, inner: int) -> None:
        """Creates `up` (hidden to inner) and `down` (inner to hidden)."""
        super().__init__()
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[..., hidden]` to the same shape."""
        y: torch.Tensor = self.down(F.gelu(self.up(x)))
        return y


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised copy and added to the residual stream.

    Args:
        hidden: Width.
        heads: Number of heads.
        feed_forward: The second half: a `FeedForward` or a layer of experts.
        causal: Whether attention is causal.
        dropout: Probability of dropping an element of what is added to the stream.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        feed_forward: nn.Module,
        *,
        causal: bool,
        dropout: float = 0.0,
    ) -> None:
        """Creates the two norms and the attention around the given feed-forward."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = SelfAttention(hidden, heads, causal=causal)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        y: torch.Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return y


def init_transformer_weights(module: nn.Module) -> None:
    """Initialises one module as GPT-2 does; pass it to `nn.Module.apply`.

    Source: Radford et al. 2019; normal with standard deviation 0.02, biases zero.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class DecoderLanguageModel(nn.Module):
    """A decoder-only language model with learned positions around given blocks.

    Args:
        vocab: Number of tokens.
        seq_len: Largest number of positions.
        hidden: Width.
        blocks: Modules from `[batch, seq, hidden]` to the same shape.
        tied: Whether the output head is the token embedding.
    """

    def __init__(
        self, vocab: int, seq_len: int, hidden: int, blocks: Iterable[nn.Module], *, tied: bool
    ) -> None:
        """Creates embeddings, final norm and head, and initialises all weights."""
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, hidden)
        self.position_embedding = nn.Embedding(seq_len, hidden)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.apply(init_transformer_weights)
        if tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps int64 tokens `[batch, seq]` to logits `[batch, seq, vocab]`."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
