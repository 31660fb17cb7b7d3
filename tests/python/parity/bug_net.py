"""A small step that has everything: tied embedding, fused weight, norm, biases, clipping, AdamW."""

import torch
import torch.nn.functional as F
from torch import nn


class BugNet(nn.Module):
    """Token model [batch, seq] -> [batch, seq, vocab] with one attention and one feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16)
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        batch, seq, width = x.shape
        fused = self.qkv(self.norm(x)).view(batch, seq, 3, 4, 4).permute(2, 0, 3, 1, 4)
        q, k, v = fused.unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        x = x + self.down(F.gelu(self.up(x)))
        return x @ self.embed.weight.t()


def step(model, optimizer, tokens, targets):
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def make_step():
    torch.manual_seed(0)
    model = BugNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    tokens = torch.randint(0, 32, (8, 8))
    targets = torch.randint(0, 32, (8, 8))
    targets[0, :3] = -100
    return step, (model, optimizer, tokens, targets)
