"""Trains a small byte-level GPT on the source of Python's standard library.

The training step is written for one device. The same file runs in one process and on many:

    python examples/train_gpt.py
    torchrun --nproc-per-node 4 examples/train_gpt.py --mesh 2x2

`--eager` leaves the decorator away: plain PyTorch in one process, the run to compare with.
"""

import argparse
import json
import os
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import nn

import shardwright as sw

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(hidden, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, hidden))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab: int, seq_len: int, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(seq_len, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def standard_library_source(limit_bytes: int) -> torch.Tensor:
    """The first bytes of the standard library's top-level modules, in order of their names."""
    source = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source += path.read_bytes()
        if len(source) >= limit_bytes:
            break
    return torch.frombuffer(source[:limit_bytes], dtype=torch.uint8)


def batches(
    source: torch.Tensor, batch_size: int, seq_len: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random windows and the same shifted by one; every process gets the same whole batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(source) - seq_len, (batch_size,), generator=generator)
        windows = torch.stack([source[i : i + seq_len + 1] for i in starts.tolist()]).long()
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mesh", help="shape of the device mesh, such as 2x2")
    parser.add_argument("--memory-limit", help="bytes per device, such as 14GiB")
    parser.add_argument("--eager", action="store_true", help="without shardwright, one process")
    parser.add_argument("--losses-out", type=Path, help="where rank 0 writes the losses as JSON")
    args = parser.parse_args()
    if args.eager and WORLD_SIZE > 1:
        parser.error("--eager is for one process")
    return args


def make_decorator(args: argparse.Namespace) -> Callable:
    """`sw.parallelize` with the options of the command line; nothing at all with --eager."""
    if args.eager:
        return lambda step: step
    # Enough for a good plan of a model this small; the report says how far from optimal it can be.
    options = {"time_limit_s": 20.0}
    if args.mesh:
        options["mesh"] = tuple(int(size) for size in args.mesh.split("x"))
    if args.memory_limit:
        options["memory_limit"] = args.memory_limit
    return sw.parallelize(**options)


def main() -> None:
    args = parse_arguments()
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    console = Console(quiet=RANK != 0)

    torch.manual_seed(args.seed)
    model = GPT(256, args.seq_len, args.hidden, args.layers, args.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    source = standard_library_source(limit_bytes=2_000_000)
    loader = batches(source, args.batch_size, args.seq_len, args.seed)
    num_parameters = sum(param.numel() for param in model.parameters())
    console.print(
        f"{num_parameters / 1e6:.1f} M parameters, {len(source) / 1e6:.1f} MB of source, "
        f"{WORLD_SIZE} process{'es' if WORLD_SIZE > 1 else ''}"
    )

    @make_decorator(args)
    def train_step(model, optimizer, tokens, targets):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = []
    progress = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} tokens/s"),
        console=console,
    )
    first_step_seconds, started = 0.0, time.perf_counter()
    for step in range(args.steps):
        tokens, targets = next(loader)
        loss = train_step(model, optimizer, tokens, targets).item()
        losses.append(loss)
        seconds = time.perf_counter() - started
        if step == 0:
            # The first call also captures the step, searches the plan and shards the model.
            first_step_seconds = seconds
            console.print(f"first step: {seconds:.1f} s, loss {loss:.4f}")
            if not args.eager and RANK == 0:
                print(train_step.plan)
            progress.start()
            bar = progress.add_task("", total=args.steps, loss=loss, speed=0.0)
        speed = step * tokens.numel() / max(seconds - first_step_seconds, 1e-9)
        progress.update(bar, advance=1, loss=loss, speed=speed)
        if not console.is_terminal and step % 10 == 9:
            console.print(f"step {step + 1}: loss {loss:.4f}, {speed:,.0f} tokens/s")
    progress.stop()

    if args.losses_out and RANK == 0:
        args.losses_out.write_text(json.dumps(losses))
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
