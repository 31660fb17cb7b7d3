"""Collectives on the list of all members' tensors, in plain torch.

Independent of the C++ operators of the same names, which must give the same results. Each takes
the tensors of a group in ascending order of ranks, the ranks to answer for, and the operator's
arguments between tensor and group name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def _all_gather(
    tensors: Sequence[Tensor], ranks: Sequence[int], rest: Sequence[Any]
) -> list[Tensor]:
    dim, outer, _ = rest
    whole = _joined(tensors, dim, outer)
    return [whole.clone() for _ in ranks]


def _reduce_scatter(
    tensors: Sequence[Tensor], ranks: Sequence[int], rest: Sequence[Any]
) -> list[Tensor]:
    dim, outer, size, kind = rest
    total = _reduced(tensors, kind)
    return [_part(total, dim, outer, size, rank) for rank in ranks]


def _all_reduce(
    tensors: Sequence[Tensor], ranks: Sequence[int], rest: Sequence[Any]
) -> list[Tensor]:
    total = _reduced(tensors, rest[0])
    return [total.clone() for _ in ranks]


def _all_to_all(
    tensors: Sequence[Tensor], ranks: Sequence[int], rest: Sequence[Any]
) -> list[Tensor]:
    src_dim, src_outer, dst_dim, dst_outer, size = rest
    if src_dim == dst_dim and src_outer > dst_outer:
        src_outer //= size
    return [
        _joined([_part(t, dst_dim, dst_outer, size, rank) for t in tensors], src_dim, src_outer)
        for rank in ranks
    ]


def _shard_slice(
    tensors: Sequence[Tensor], ranks: Sequence[int], rest: Sequence[Any]
) -> list[Tensor]:
    dim, outer, size, rank = rest
    return [_part(tensors[0], dim, outer, size, rank)]


def _mask_partial(
    tensors: Sequence[Tensor], ranks: Sequence[int], rest: Sequence[Any]
) -> list[Tensor]:
    return [tensors[0].clone() if rest[0] else torch.zeros_like(tensors[0])]


SIMULATED: dict[str, Callable[..., list[Tensor]]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "shard_slice": _shard_slice,
    "mask_partial": _mask_partial,
}


def _joined(parts: Sequence[Tensor], dim: int, outer: int) -> Tensor:
    """Concatenates along the atom whose dim is [outer, atom]."""
    split = [part.reshape(_unflattened(part, dim, (outer, -1))) for part in parts]
    return torch.cat(split, dim + 1).flatten(dim, dim + 1)


def _part(tensor: Tensor, dim: int, outer: int, size: int, index: int) -> Tensor:
    """Part `index` of `size` along the atom whose dim is [outer, atom]."""
    split = tensor.reshape(_unflattened(tensor, dim, (outer, size, -1))).select(dim + 1, index)
    return split.flatten(dim, dim + 1).contiguous()


def _unflattened(tensor: Tensor, dim: int, sizes: Sequence[int]) -> list[int]:
    """The shape with dim `dim` as several dims; one of their sizes may be -1."""
    shape = list(tensor.shape)
    known = 1
    for size in sizes:
        known *= abs(size)
    shape[dim : dim + 1] = [shape[dim] // known if size == -1 else size for size in sizes]
    return shape


def _reduced(tensors: Sequence[Tensor], kind: str) -> Tensor:
    """Reduction in ascending order; halves are summed in float32, as the C++ ops do."""
    dtype = tensors[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = tensors[0].to(wide)
    for tensor in tensors[1:]:
        if kind == "sum":
            total = total + tensor.to(wide)
        elif kind == "max":
            total = torch.maximum(total, tensor.to(wide))
        else:
            total = torch.minimum(total, tensor.to(wide))
    return total.to(dtype)
