"""GShard-style mixture of experts with the sizes of Alpa's published measurements."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.zoo.optimizers import OptimizerName, make_optimizer
from shardwright.zoo.steps import language_model_step
from shardwright.zoo.target import Device, Target, build_module, token_batch
from shardwright.zoo.transformer import Block, DecoderLanguageModel, FeedForward

PUBLISHED_GLOBAL_BATCH = 1024


def top2_gating(gates: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends each token to its two best experts while they have room.

    First choices are seated before second choices, each in order of position; a token whose expert
    is full is dropped there. The two gates of a token are scaled to sum to one over the seats it
    got. There is no auxiliary loss and the second choice is not random. As in the paper, a later
    token's first choice may take the seat of an earlier token's second choice, so the layer is not
    strictly causal.

    Args:
        gates: Probabilities `[group, token, expert]`.
        capacity: Seats per expert and group.

    Returns:
        The combine weights and the 0/1 dispatch mask, both `[group, token, expert, seat]` in the
        type of `gates`.

    Source:
        GShard (Lepikhin et al., ICLR 2021), algorithm 1.
    """
    num_experts = gates.shape[-1]
    first = _one_hot(gates.argmax(dim=-1), num_experts)
    second = _one_hot(gates.masked_fill(first.bool(), 0.0).argmax(dim=-1), num_experts)

    # Seats are counted in int64: bf16 is exact only up to 256, and a group has 2048 tokens.
    first_seat = first.cumsum(dim=1) - first
    second_seat = second.cumsum(dim=1) - second + first.sum(dim=1, keepdim=True)
    first = first * (first_seat < capacity)
    second = second * (second_seat < capacity)

    first_gate = (gates * first).sum(dim=-1)
    second_gate = (gates * second).sum(dim=-1)
    total = first_gate + second_gate
    total = torch.where(total > 0, total, torch.ones_like(total))

    combine = _assign(first, first_seat, first_gate / total, capacity)
    combine = combine + _assign(second, second_seat, second_gate / total, capacity)
    return combine, (combine > 0).to(gates.dtype)


def _one_hot(index: torch.Tensor, size: int) -> torch.Tensor:
    return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).long()


def _assign(
    mask: torch.Tensor, seat: torch.Tensor, gate: torch.Tensor, capacity: int
) -> torch.Tensor:
    seat_of_token = _one_hot((seat * mask).sum(dim=-1), capacity).to(gate.dtype)
    gate_of_expert = gate.unsqueeze(-1) * mask
    return torch.einsum("gse,gsc->gsec", gate_of_expert, seat_of_token)


class ExpertLayer(nn.Module):
    """A gate and `num_experts` feed-forward experts, as dense one-hot products.

    Args:
        hidden: Width of input and output.
        inner: Width inside an expert.
        num_experts: Number of experts.
        group_size: Tokens among which an expert's seats are shared out; divides batch x seq.
    """

    def __init__(self, hidden: int, inner: int, num_experts: int, group_size: int) -> None:
        """Creates the gate and the stacked expert weights, which have no biases."""
        super().__init__()
        self.group_size = group_size
        self.capacity = max(1, 2 * group_size // num_experts)
        self.gate = nn.Linear(hidden, num_experts, bias=False)
        self.up = nn.Parameter(torch.empty(num_experts, hidden, inner))
        self.down = nn.Parameter(torch.empty(num_experts, inner, hidden))
        nn.init.normal_(self.up, std=0.02)
        nn.init.normal_(self.down, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[batch, seq, hidden]` to the same shape."""
        grouped = x.reshape(-1, self.group_size, x.shape[-1])
        combine, dispatch = top2_gating(F.softmax(self.gate(grouped), dim=-1), self.capacity)
        seated = torch.einsum("gsec,gsm->egcm", dispatch, grouped)
        inner = F.relu(torch.einsum("egcm,emh->egch", seated, self.up))
        outputs = torch.einsum("egch,ehm->egcm", inner, self.down)
        return torch.einsum("gsec,egcm->gsm", combine, outputs).reshape(x.shape)


class MoETransformer(DecoderLanguageModel):
    """A decoder-only language model in which every second feed-forward is a layer of experts.

    Args:
        vocab: Number of tokens.
        seq_len: Largest number of positions.
        hidden: Width.
        layers: Number of blocks, even.
        heads: Number of heads.
        num_experts: Experts per expert layer.
        group_size: Tokens per expert group.
        tied: Whether the output head is the token embedding.
    """

    def __init__(
        self,
        *,
        vocab: int,
        seq_len: int,
        hidden: int,
        layers: int,
        heads: int,
        num_experts: int,
        group_size: int,
        tied: bool = True,
    ) -> None:
        """Creates embeddings, blocks (experts first), final norm and head."""
        if layers % 2:
            raise ValueError(f"layers must be even, got {layers}")
        inner = 8 * hidden
        blocks = (
            Block(
                hidden,
                heads,
                ExpertLayer(hidden, inner, num_experts, group_size)
                if index % 2 == 0
                else FeedForward(hidden, inner),
                causal=True,
            )
            for index in range(layers)
        )
        super().__init__(vocab, seq_len, hidden, blocks, tied=tied)


def moe(
    *,
    hidden: int,
    layers: int,
    num_experts: int,
    heads: int = 16,
    vocab: int = 32000,
    seq_len: int = 1024,
    group_size: int = 2048,
    batch_size: int = 8,
    tied: bool = True,
    optimizer: OptimizerName = "adamw",
    lr: float = 3e-4,
    device: Device = "meta",
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Target:
    """Returns a GShard training step and its arguments `(model, optimizer, tokens, targets)`.

    Half-precision parameters come with `MixedPrecisionAdamW`, fp32 and fp64 ones with AdamW.

    Raises:
        ValueError: If `batch_size` x `seq_len` is not a multiple of `group_size`.
    """
    if batch_size * seq_len % group_size:
        raise ValueError(
            f"batch_size {batch_size} x seq_len {seq_len} is not a multiple of "
            f"group_size {group_size}"
        )
    model = build_module(
        lambda: MoETransformer(
            vocab=vocab,
            seq_len=seq_len,
            hidden=hidden,
            layers=layers,
            heads=heads,
            num_experts=num_experts,
            group_size=group_size,
            tied=tied,
        ),
        device=device,
        dtype=dtype,
        seed=seed,
    )
    tokens, targets = token_batch(batch_size, seq_len, vocab, device=device, seed=seed)
    return language_model_step, (model, make_optimizer(model, optimizer, lr), tokens, targets)


# The default batch is one published microbatch; the whole is `batch_size=PUBLISHED_GLOBAL_BATCH`.
moe_380m = partial(moe, hidden=768, layers=8, num_experts=8, batch_size=2)
moe_690m = partial(moe, hidden=768, layers=8, num_experts=16, batch_size=32)
moe_1_3b = partial(moe, hidden=768, layers=16, num_experts=16, batch_size=32)
moe_2_4b = partial(moe, hidden=1024, layers=16, num_experts=16, batch_size=32)
moe_10b = partial(moe, hidden=1536, layers=16, num_experts=32, batch_size=64)
moe_27b = partial(moe, hidden=2048, layers=16, num_experts=48, batch_size=8)
moe_70b = partial(moe, hidden=2048, layers=32, num_experts=64, batch_size=16)

moe_tiny = partial(
    moe,
    hidden=32,
    layers=2,
    heads=8,
    num_experts=8,
    vocab=64,
    seq_len=16,
    group_size=16,
    batch_size=8,
    lr=1e-2,
    device="cpu",
    dtype=torch.float32,
)
