"""The arguments of a step, sorted: modules, optimizers, batch tensors, Python constants."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from shardwright.capture.source import place
from shardwright.errors import CaptureError

CONSTANT_TYPES = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, Enum,
)  # fmt: skip


@dataclass(frozen=True)
class StepArguments:
    """What a step is called with.

    Attributes:
        step: the user's function.
        names: per leaf its path, such as `batch['x'][0]`.
        leaves: pytree leaves of (args, kwargs): modules, optimizers, tensors, constants.
        treedef: rebuilds (args, kwargs) from leaves.
        modules: distinct modules by prefix ("" when there is only one).
        optimizers: distinct optimizers by argument path.
        parameters: name -> parameter, each tied parameter once, in module order.
        buffers: name -> buffer, likewise.
        aliases: name -> further names of the same tensor.
        optimizer_parameters: optimizer path -> names of its parameters, in group order.
    """

    step: Callable[..., Any]
    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    treedef: pytree.TreeSpec
    modules: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    aliases: dict[str, tuple[str, ...]]
    optimizer_parameters: dict[str, list[str]]

    @property
    def batch(self) -> dict[str, Tensor]:
        """Tensor leaves by path."""
        pairs = zip(self.names, self.leaves, strict=True)
        return {name: leaf for name, leaf in pairs if isinstance(leaf, Tensor)}

    @property
    def where(self) -> str:
        """Place of the step's definition."""
        return where_defined(self.step)

    def parameter_name(self) -> dict[int, str]:
        """Id of each parameter -> its name."""
        return {id(p): name for name, p in self.parameters.items()}


def where_defined(step: Callable[..., Any]) -> str:
    """`file.py:line` of a function's definition, or its type's name."""
    code = getattr(inspect.unwrap(step), "__code__", None)
    if code is None:
        return type(step).__name__
    return place(code.co_filename, code.co_firstlineno)


def sort_arguments(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> StepArguments:
    """Flattens and checks the arguments of a step.

    Raises:
        CaptureError: E104 no module or no trainable parameter; E105 wrapped model; E106 an
            optimizer's parameter belongs to no module argument; E107 unsupported layout or dtype;
            E108 argument of unsupported type.
    """
    where = where_defined(step)
    paths, treedef = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    roots = _argument_names(step, args, kwargs)
    names = tuple(roots[path[:2]] + pytree.keystr(path[2:]) for path, _ in paths)
    leaves = tuple(leaf for _, leaf in paths)
    modules: dict[str, nn.Module] = {}
    optimizers: dict[str, Optimizer] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, nn.Module):
            _check_not_wrapped(name, leaf, where)
            if all(leaf is not known for known in modules.values()):
                modules[name] = leaf
        elif isinstance(leaf, Optimizer):
            if all(leaf is not known for known in optimizers.values()):
                optimizers[name] = leaf
        elif isinstance(leaf, Tensor):
            check_tensor(name, leaf, where)
        elif not isinstance(leaf, CONSTANT_TYPES):
            raise CaptureError(
                f"argument {name} has type {_type_name(leaf)}, which a step cannot take",
                code="E108",
                where=where,
                advice="pass tensors, modules, torch.optim optimizers, numbers and strings, alone "
                "or in dicts, lists and tuples; call schedulers and loggers outside the step",
            )
    if not modules:
        raise CaptureError(
            "the step has no module among its arguments",
            code="E104",
            values=[f"arguments: {', '.join(names) or 'none'}"],
            where=where,
            advice="pass the model as an argument of the step instead of reaching it by closure",
        )
    if len(modules) == 1:
        modules = {"": next(iter(modules.values()))}
    parameters, buffers, aliases = _named_tensors(modules, where)
    if not any(p.requires_grad for p in parameters.values()):
        raise CaptureError(
            f"the model has no trainable parameter ({len(parameters)} in all)",
            code="E104",
            where=where,
            advice="set requires_grad on what is to be trained"
            if parameters
            else "pass a module that has parameters",
        )
    _check_optimizers(optimizers, parameters, where)
    name_of = {id(p): name for name, p in parameters.items()}
    owned = {
        name: [name_of[id(p)] for group in optimizer.param_groups for p in group["params"]]
        for name, optimizer in optimizers.items()
    }
    return StepArguments(
        step, names, leaves, treedef, modules, optimizers, parameters, buffers, aliases, owned
    )


def _argument_names(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[tuple[Any, ...], str]:
    """Pytree path prefix of each argument -> its name in the step's signature."""
    try:
        parameters = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: dict[tuple[Any, ...], str] = {}
    for i in range(len(args)):
        name = f"arg{i}"
        if i < len(parameters) and parameters[i].kind is not inspect.Parameter.VAR_POSITIONAL:
            name = parameters[i].name
        elif parameters:
            first = [p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
            name = f"{first[0].name}[{i - parameters.index(first[0])}]" if first else name
        names[pytree.SequenceKey(0), pytree.SequenceKey(i)] = name
    for key in kwargs:
        names[pytree.SequenceKey(1), pytree.MappingKey(key)] = key
    return names


def _named_tensors(
    modules: dict[str, nn.Module], where: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Parameters and buffers by name, each tensor once, and the other names of shared ones."""
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    name_of: dict[int, str] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    for prefix, module in modules.items():
        dot = f"{prefix}." if prefix else ""
        for table, found in (
            (parameters, module.named_parameters(remove_duplicate=False)),
            (buffers, module.named_buffers(remove_duplicate=False)),
        ):
            for local_name, tensor in found:
                name = dot + local_name
                first = name_of.setdefault(id(tensor), name)
                if first == name:
                    check_tensor(name, tensor, where)
                    table[name] = tensor
                else:
                    aliases[first] = (*aliases.get(first, ()), name)
    return parameters, buffers, aliases


def _check_not_wrapped(name: str, module: nn.Module, where: str) -> None:
    for path, part in module.named_modules():
        kind = type(part)
        wrapper = {
            "DistributedDataParallel": "DistributedDataParallel",
            "FullyShardedDataParallel": "FullyShardedDataParallel",
            "DataParallel": "DataParallel",
            "OptimizedModule": "torch.compile",
        }.get(kind.__name__)
        if wrapper is None and any(
            c.__name__ == "FSDPModule" and c.__module__.startswith("torch.") for c in kind.__mro__
        ):
            wrapper = "fully_shard"
        if wrapper is not None and kind.__mro__[-3:] and _is_torch_class(kind):
            raise CaptureError(
                f"argument {name} is already wrapped by {wrapper}",
                code="E105",
                values=[f"module: {path or name}"],
                where=where,
                advice="pass the plain module; shardwright decides itself how to distribute it",
            )


def _is_torch_class(kind: type) -> bool:
    return any(c.__module__.startswith("torch.") and c is not nn.Module for c in kind.__mro__)


def check_tensor(name: str, tensor: Tensor, where: str) -> None:
    """Raises E105 for distributed tensors and E107 for layouts and dtypes without rules."""
    if type(tensor).__name__ == "DTensor":
        raise CaptureError(
            f"{name} is a DTensor",
            code="E105",
            where=where,
            advice="pass plain tensors; shardwright decides itself how to distribute them",
        )
    problem = ""
    if isinstance(tensor, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)):
        problem = "not initialised yet (lazy module)"
    elif tensor.layout != torch.strided:
        problem = f"layout {tensor.layout}"
    elif tensor.is_complex():
        problem = f"dtype {tensor.dtype}"
    elif tensor.is_quantized or str(tensor.dtype).startswith(("torch.q", "torch.bits")):
        problem = f"quantised dtype {tensor.dtype}"
    elif tensor.is_nested:
        problem = "nested layout"
    if problem:
        raise CaptureError(
            f"{name} has an unsupported form: {problem}",
            code="E107",
            where=where,
            advice="use dense real tensors; run a lazy module once before the step",
        )


def _check_optimizers(
    optimizers: dict[str, Optimizer], parameters: dict[str, Tensor], where: str
) -> None:
    known = {id(p) for p in parameters.values()}
    for name, optimizer in optimizers.items():
        for i, group in enumerate(optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    raise CaptureError(
                        f"{name}.param_groups[{i}]['params'][{j}] belongs to no module argument",
                        code="E106",
                        values=[f"shape {list(parameter.shape)}, dtype {parameter.dtype}"],
                        where=where,
                        advice="pass the module that owns it, or build the optimizer from the "
                        "parameters of the module that is passed",
                    )


def _type_name(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
