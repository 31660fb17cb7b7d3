"""Where a model's and an optimizer's tensors hang, and how others are hung in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def _tables(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    seen: set[int] = set()
    for root in modules:
        for part in root.modules():
            if id(part) not in seen:
                seen.add(id(part))
                yield part, part._parameters
                yield part, part._buffers


def replace_tensors(
    modules: Iterable[nn.Module],
    optimizers: Iterable[Optimizer],
    replacement: Mapping[int, Tensor],
) -> None:
    """Hangs other tensors into modules, parameter groups and the keys of optimizer state.

    Args:
        modules: their parameters and buffers, tied ones at every place.
        optimizers: theirs too.
        replacement: id of the tensor that hangs there -> tensor that shall.
    """
    for _, table in _tables(modules):
        for name, tensor in table.items():
            if tensor is not None and id(tensor) in replacement:
                table[name] = replacement[id(tensor)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [replacement.get(id(p), p) for p in group["params"]]
        kept = {replacement.get(id(p), p): entry for p, entry in optimizer.state.items()}
        optimizer.state.clear()
        optimizer.state.update(kept)


def owners(
    modules: Iterable[nn.Module], tensors: Mapping[int, str]
) -> Iterator[tuple[nn.Module, str, str]]:
    """Every place of some tensors.

    Args:
        modules: where to look.
        tensors: id -> label.

    Yields:
        (module, local name, label).
    """
    for part, table in _tables(modules):
        for name, tensor in table.items():
            if tensor is not None and id(tensor) in tensors:
                yield part, name, tensors[id(tensor)]


@contextmanager
def unsharded_shapes(
    modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]
) -> Iterator[dict[int, Tensor]]:
    """Shows sharded tensors as whole meta tensors, for capturing once more.

    Args:
        modules: their DTensor parameters and buffers are replaced.
        optimizers: likewise their groups and state.

    Yields:
        id of each tensor shown -> the one it stands for.
    """
    modules, optimizers = list(modules), list(optimizers)
    forward: dict[int, Tensor] = {}
    backward: dict[int, Tensor] = {}
    for _, table in _tables(modules):
        for tensor in table.values():
            if tensor is not None and id(tensor) not in forward:
                shape = _meta_like(tensor)
                forward[id(tensor)] = shape
                backward[id(shape)] = tensor
    states = [(o, {p: dict(entry) for p, entry in o.state.items()}) for o in optimizers]
    replace_tensors(modules, optimizers, forward)
    for optimizer in optimizers:
        for entry in optimizer.state.values():
            for key, value in entry.items():
                if isinstance(value, Tensor) and value.dim():
                    entry[key] = torch.empty(value.shape, dtype=value.dtype, device="meta")
    try:
        yield backward
    finally:
        replace_tensors(modules, optimizers, backward)
        for optimizer, saved in states:
            optimizer.state.clear()
            optimizer.state.update(saved)


def _meta_like(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
