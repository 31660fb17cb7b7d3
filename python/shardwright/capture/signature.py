"""Key under which a captured step may be used again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils import _pytree as pytree

from shardwright.capture.optimizers import is_known

_STRUCTURAL = ("amsgrad", "maximize", "nesterov", "decoupled_weight_decay", "differentiable")


def signature(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Hashable:
    """Two calls with equal signatures have the same graph, guards of the StepGraph aside.

    It holds shapes, dtypes and requires_grad of all tensors, how parameters are tied, train or
    eval mode of every submodule, the structure of every optimizer (for Adam, AdamW and SGD not
    the hyper-parameters, which are inputs of the graph) and the values of Python arguments.
    """
    leaves, treedef = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    number: dict[int, int] = {}
    return str(treedef), tuple(_leaf(leaf, number) for leaf in leaves)


def _leaf(leaf: Any, number: dict[int, int]) -> Hashable:
    if isinstance(leaf, nn.Module):
        return ("module", tuple(_module(path, part, number) for path, part in _parts(leaf)))
    if isinstance(leaf, Optimizer):
        return ("optimizer", type(leaf), tuple(_group(leaf, g, number) for g in leaf.param_groups))
    if isinstance(leaf, Tensor):
        return _tensor(leaf)
    return (type(leaf), repr(leaf))


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(module.named_modules(remove_duplicate=False))


def _module(path: str, part: nn.Module, number: dict[int, int]) -> Hashable:
    tensors = tuple(
        (name, number.setdefault(id(t), len(number)), _tensor(t))
        for table in (part._parameters, part._buffers)
        for name, t in table.items()
        if t is not None
    )
    return path, type(part), part.training, tensors


def _tensor(tensor: Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _group(optimizer: Optimizer, group: dict[str, Any], number: dict[int, int]) -> Hashable:
    parameters = tuple(
        (number.get(id(p), -1), tuple(sorted(_held(optimizer, p)))) for p in group["params"]
    )
    if is_known(optimizer):
        flags = tuple((key, bool(group.get(key))) for key in _STRUCTURAL)
        if type(optimizer) is SGD:
            flags = (*flags, ("momentum", group["momentum"] != 0))
        # State that is missing begins with zeros: the same graph.
        return tuple(index for index, _ in parameters), flags
    options = tuple(
        (key, repr(value)) for key, value in sorted(group.items()) if key not in ("params", "lr")
    )
    return parameters, options


def _held(optimizer: Optimizer, parameter: Tensor) -> list[str]:
    return [str(key) for key in optimizer.state.get(parameter, {})]
