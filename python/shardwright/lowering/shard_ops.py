"""Ops that stand in for an op when a rank must know which part of a dim it holds.

Each takes the arguments of the op it stands for and then what the rule's edits append, the first
global index of the part (`offset`) last. They are declared in the `shardwright` namespace by
importing this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_LIBRARY: Any = torch.library.Library("shardwright", "FRAGMENT")  # type: ignore[no-untyped-call]


def _local_rows(indices: Tensor, num_rows: int, offset: int) -> tuple[Tensor, Tensor]:
    """Row of each index within [offset, offset + num_rows), 0 outside, and whether it is inside."""
    rows = indices - offset
    inside = (rows >= 0) & (rows < num_rows)
    return torch.where(inside, rows, torch.zeros_like(rows)), inside


def _embedding_shard(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
    offset: int,
) -> Tensor:
    """Rows of a shard of the table: weight [v_local, d], indices [...] -> [..., d]."""
    rows, inside = _local_rows(indices, weight.shape[0], offset)
    found: Tensor = torch.ops.aten.embedding.default(weight, rows)
    return torch.where(inside.unsqueeze(-1), found, torch.zeros_like(found))


def _embedding_shard_fake(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
    offset: int,
) -> Tensor:
    return weight.new_empty((*indices.shape, weight.shape[1]))


def _embedding_dense_backward_shard(
    grad: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    offset: int,
) -> Tensor:
    """Gradient of a shard of the table: grad [..., d], indices [...] -> [num_weights, d].

    Args:
        grad: gradient of the embedding's result.
        indices: global rows.
        num_weights: rows of the shard.
        padding_idx: global row that gets no gradient, -1 for none.
        scale_grad_by_freq: divide a row's gradient by how often it occurs in `indices`.
        offset: global index of the shard's first row.
    """
    rows, inside = _local_rows(indices, num_weights, offset)
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)
    # Rows of other ranks go to an extra row that is cut off.
    rows = torch.where(inside, rows, torch.full_like(rows, num_weights))
    result: Tensor = torch.ops.aten.embedding_dense_backward.default(
        grad, rows, num_weights + 1, num_weights, scale_grad_by_freq
    )
    return result[:num_weights].contiguous()


def _embedding_dense_backward_shard_fake(
    grad: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    offset: int,
) -> Tensor:
    return grad.new_empty((num_weights, grad.shape[-1]))


def _arange_shard(
    start: float,
    end: float,
    step: float,
    length: int,
    offset: int,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """Elements [offset, offset + length) of arange(start, end, step)."""
    if dtype is None:
        is_integer = all(isinstance(number, int) for number in (start, end, step))
        dtype = torch.int64 if is_integer else torch.get_default_dtype()
    if dtype.is_floating_point:
        index = torch.arange(offset, offset + length, dtype=torch.float64, device=device)
    else:
        index = torch.arange(offset, offset + length, device=device)
    return (start + index * step).to(dtype)


def _dropout_shard(
    x: Tensor,
    seed: Tensor,
    stream: int,
    p: float,
    global_atoms: Sequence[int],
    local_atoms: Sequence[int],
    atom_starts: Sequence[int],
) -> Tensor:
    """Dropout of a shard with the mask of the whole tensor.

    Args:
        x: local part of the tensor, any shape of prod(local_atoms) elements.
        seed: as for `shardwright::dropout`.
        stream: likewise.
        p: likewise.
        global_atoms: size of each atom of the tensor, dim by dim.
        local_atoms: size of this rank's part of each atom.
        atom_starts: first global index of that part.
    """
    result: Tensor = torch.ops.shardwright.dropout(
        x.reshape(local_atoms), seed, stream, p, global_atoms, atom_starts
    )
    return result.reshape(x.shape)


def _dropout_shard_fake(x: Tensor, *args: object) -> Tensor:
    return x.new_empty(x.shape)


_LIBRARY.define(
    "embedding_shard(Tensor weight, Tensor indices, int padding_idx, bool scale_grad_by_freq, "
    "bool sparse, int offset) -> Tensor"
)
_LIBRARY.define(
    "embedding_dense_backward_shard(Tensor grad, Tensor indices, int num_weights, "
    "int padding_idx, bool scale_grad_by_freq, int offset) -> Tensor"
)
_LIBRARY.define(
    "arange_shard(Scalar start, Scalar end, Scalar step, int length, int offset, *, "
    "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) "
    "-> Tensor"
)
_LIBRARY.define(
    "dropout_shard(Tensor x, Tensor seed, int stream, float p, int[] global_atoms, "
    "int[] local_atoms, int[] atom_starts) -> Tensor"
)
for _name, _kernel, _fake in (
    ("embedding_shard", _embedding_shard, _embedding_shard_fake),
    (
        "embedding_dense_backward_shard",
        _embedding_dense_backward_shard,
        _embedding_dense_backward_shard_fake,
    ),
    ("dropout_shard", _dropout_shard, _dropout_shard_fake),
):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _key)
    torch.library.register_fake(f"shardwright::{_name}", _fake, lib=_LIBRARY)
# It has no tensor argument whose device could pick a kernel.
_LIBRARY.impl("arange_shard", _arange_shard, "CompositeExplicitAutograd")
