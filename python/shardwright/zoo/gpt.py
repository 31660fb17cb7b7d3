"""GPT with the sizes of Alpa's published measurements (OSDI 2022, table 5)."""

from functools import partial

import torch

from shardwright.zoo.optimizers import OptimizerName, make_optimizer
from shardwright.zoo.steps import language_model_step
from shardwright.zoo.target import Device, Target, build_module, token_batch
from shardwright.zoo.transformer import Block, DecoderLanguageModel, FeedForward

PUBLISHED_GLOBAL_BATCH = 1024


class GPT(DecoderLanguageModel):
    """A decoder-only language model with learned positions.

    Args:
        vocab: Number of tokens.
        seq_len: Largest number of positions.
        hidden: Width.
        layers: Number of blocks.
        heads: Number of heads.
        tied: Whether the output head is the token embedding.
        dropout: Probability of dropping an element of what a block adds.
    """

    def __init__(
        self,
        *,
        vocab: int,
        seq_len: int,
        hidden: int,
        layers: int,
        heads: int,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """Creates embeddings, blocks, final norm and head."""
        blocks = (
            Block(hidden, heads, FeedForward(hidden, 4 * hidden), causal=True, dropout=dropout)
            for _ in range(layers)
        )
        super().__init__(vocab, seq_len, hidden, blocks, tied=tied)


def gpt(
    *,
    hidden: int,
    layers: int,
    heads: int,
    vocab: int = 51200,
    seq_len: int = 1024,
    batch_size: int = 8,
    tied: bool = True,
    dropout: float = 0.0,
    optimizer: OptimizerName = "adamw",
    lr: float = 3e-4,
    device: Device = "meta",
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Target:
    """Returns a GPT training step and its arguments `(model, optimizer, tokens, targets)`.

    Half-precision parameters come with `MixedPrecisionAdamW`, fp32 and fp64 ones with AdamW.
    """
    model = build_module(
        lambda: GPT(
            vocab=vocab,
            seq_len=seq_len,
            hidden=hidden,
            layers=layers,
            heads=heads,
            tied=tied,
            dropout=dropout,
        ),
        device=device,
        dtype=dtype,
        seed=seed,
    )
    tokens, targets = token_batch(batch_size, seq_len, vocab, device=device, seed=seed)
    return language_model_step, (model, make_optimizer(model, optimizer, lr), tokens, targets)


# The published runs split a global batch of 1024 sequences into microbatches. The default here is
# one such microbatch; the whole batch is `batch_size=PUBLISHED_GLOBAL_BATCH`. 125m and 76b were
# never measured: their microbatches are those of their nearest neighbours.
gpt_125m = partial(gpt, hidden=768, layers=12, heads=12, batch_size=2)
gpt_350m = partial(gpt, hidden=1024, layers=24, heads=16, batch_size=2)
gpt_760m = partial(gpt, hidden=1536, layers=24, heads=16, batch_size=8)
gpt_1_3b = partial(gpt, hidden=2048, layers=24, heads=32, batch_size=8)
gpt_2_6b = partial(gpt, hidden=2560, layers=32, heads=32, batch_size=8)
gpt_6_7b = partial(gpt, hidden=4096, layers=32, heads=32, batch_size=16)
gpt_15b = partial(gpt, hidden=5120, layers=48, heads=40, batch_size=8)
gpt_39b = partial(gpt, hidden=8192, layers=48, heads=64, batch_size=1)
gpt_76b = partial(gpt, hidden=10240, layers=60, heads=80, batch_size=1)

gpt_tiny = partial(
    gpt,
    hidden=32,
    layers=2,
    heads=8,
    vocab=64,
    seq_len=16,
    batch_size=8,
    lr=1e-2,
    device="cpu",
    dtype=torch.float32,
)
