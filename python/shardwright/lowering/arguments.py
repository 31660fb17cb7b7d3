"""Arguments of an instruction as torch wants them on one rank.

The table holds dtypes, devices, layouts and memory formats as text; which text is which follows
from the op's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardwright.errors import InternalError
from shardwright.lowering.table import Arg, Instruction, LocalRef, RankInt

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool",
    )
}  # fmt: skip
_MEMORY_FORMATS = {
    str(f): f for f in (torch.contiguous_format, torch.preserve_format, torch.channels_last)
}


def parse_dtype(name: str) -> torch.dtype:
    """The dtype called "float32" or "torch.float32".

    Raises:
        InternalError: E940 for any other text.
    """
    dtype = _DTYPES.get(name.removeprefix("torch."))
    if dtype is None:
        raise InternalError("a program names an unknown dtype", code="E940", values=[repr(name)])
    return dtype


def torch_arguments(
    instruction: Instruction,
    target: torch._ops.OpOverload,
    value_of: Callable[[LocalRef], Any],
    coordinate: Sequence[int],
    device: torch.device,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a compute instruction on one rank.

    Args:
        instruction: of kind "compute".
        target: the op called.
        value_of: what stands for a value.
        coordinate: of the rank.
        device: where the program runs; replaces every device argument.
    """
    schema = target._schema.arguments
    by_name = {argument.name: str(argument.real_type) for argument in schema}
    kinds = [str(argument.real_type) for argument in schema]

    def convert(value: Arg, kind: str) -> Any:
        if isinstance(value, LocalRef):
            return value_of(value)
        if isinstance(value, RankInt):
            return value.at(coordinate)
        if isinstance(value, tuple):
            return [convert(item, kind) for item in value]
        if "Device" in kind and value is not None:
            return device
        if isinstance(value, str):
            return _from_text(value, kind)
        return value

    args = tuple(convert(value, kinds[i]) for i, value in enumerate(instruction.args))
    kwargs = {name: convert(value, by_name[name]) for name, value in instruction.kwargs}
    makes_tensor = "Device" in by_name.get("device", "") and not instruction.sources()
    if makes_tensor and len(args) <= [a.name for a in schema].index("device"):
        kwargs["device"] = device  # captured without: there the CPU is the default
    return args, kwargs


def _from_text(text: str, kind: str) -> Any:
    if "ScalarType" in kind:
        return parse_dtype(text)
    if "Layout" in kind:
        return torch.strided
    if "MemoryFormat" in kind:
        return _MEMORY_FORMATS.get(text, torch.contiguous_format)
    return text
