"""In-place ops by their functional forms, and views by the calls that undo them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
ViewCall = tuple[Any, tuple[Any, ...], dict[str, Any]]


@functools.cache
def functional_form(func: Any) -> tuple[Any | None, tuple[str, ...]]:
    """The op without mutation, and the names of the arguments that `func` writes.

    For instance `aten.add_.Tensor` -> (`aten.add.Tensor`, ("self",)). The form's last results are
    the new values of those arguments. None when there is no such op.
    """
    schema = func._schema
    written = tuple(
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )
    namespace, name = schema.name.split("::")
    if schema.arguments[-1].is_out:
        return _form_of_out(func, namespace, name), written
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if packet is None or not name.endswith("_"):
        return None, written
    form = getattr(packet, func._overloadname, None)
    return form, written


def _form_of_out(func: Any, namespace: str, name: str) -> Any | None:
    """Overload with the same arguments except the outputs."""
    wanted = [a.name for a in func._schema.arguments if not a.is_out]
    packet = getattr(getattr(torch.ops, namespace), name)
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        same = [a.name for a in candidate._schema.arguments] == wanted
        types = [str(a.type) for a in candidate._schema.arguments]
        if same and not candidate._schema.is_mutable:
            outer = [str(a.type) for a in func._schema.arguments if not a.is_out]
            if types == outer:
                return candidate
    return None


def view_of_each_part(
    func: Any, source: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Sequence[Any]
) -> list[ViewCall]:
    """View calls with one result each that make the results of a view op.

    split and unbind become a slice or a selection per part; other views are their own.
    """
    name = func._schema.name
    if name in ("aten::split", "aten::split_with_sizes", "aten::chunk", "aten::tensor_split"):
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % source.dim()
        calls: list[ViewCall] = []
        start = 0
        for part in parts:
            end = start + part.shape[dim]
            calls.append((_aten.slice.Tensor, (dim, start, end, 1), {}))
            start = end
        return calls
    if name == "aten::unbind":
        dim = (args[0] if args else kwargs.get("dim", 0)) % source.dim()
        return [(_aten.select.int, (dim, i), {}) for i in range(len(parts))]
    return [(func, args, kwargs)] * len(parts)


_RESHAPES = frozenset({
    "aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::unsqueeze", "aten::squeeze",
    "aten::flatten", "aten::unflatten", "aten::reshape",
})  # fmt: skip
_SCATTERS = {
    "aten::slice": _aten.slice_scatter.default,
    "aten::select": _aten.select_scatter.default,
    "aten::diagonal": _aten.diagonal_scatter.default,
}


def undo_view(
    target: Any, old: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], bool] | None:
    """How the viewed tensor is made again from a new value of the view.

    Args:
        target: the view op.
        old: what was viewed.
        args: arguments of the view after the tensor.
        kwargs: likewise, by name.

    Returns:
        (op, further arguments, whether the old value comes first), or None if it cannot be.
    """
    name = target._schema.name
    if name in _RESHAPES and target is not _aten.view.dtype:
        return _aten.view.default, (list(old.shape),), False
    if name in _SCATTERS:
        return _SCATTERS[name], (*args, *kwargs.values()), True
    if name in ("aten::transpose", "aten::t", "aten::numpy_T"):
        return target, args, False
    if name == "aten::permute":
        dims = [d % old.dim() for d in args[0]]
        return _aten.permute.default, ([dims.index(d) for d in range(len(dims))],), False
    if name == "aten::expand" and list(args[0]) in (list(old.shape), [-1] * old.dim()):
        return _aten.view.default, (list(old.shape),), False
    return None
