"""Records what the step does as a functional fx graph while it runs on fake tensors.

One dispatch mode sees every ATen call below autograd. A tensor stands for a base and a chain of
views of it; an in-place call gives the base a new value, and other views of the base are taken
anew from that value when they are next read. So the graph has no mutation, and each call is
executed once, on fakes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.capture.decompositions import IN_PLACE, Table
from shardwright.capture.functional_form import functional_form, undo_view, view_of_each_part
from shardwright.capture.source import current_user_line
from shardwright.capture.tags import Tags
from shardwright.errors import CaptureError

_aten = torch.ops.aten
_LIFTS = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten.lift.default})
_SAME = frozenset({_aten.detach.default, _aten.alias.default})
# Composite as well, but every device has one kernel for it, which eager steps run.
_ONE_KERNEL = frozenset({_aten.silu_backward.default})
_CPU = torch.device("cpu")
_SLOT = "_shardwright_value"


@dataclass(eq=False)
class _Base:
    """Memory that tensors share: its present value, and how often it was written."""

    node: fx.Node
    version: int = 0


@dataclass(frozen=True)
class _View:
    """One view call: its op, the arguments after the tensor, and the result's fake."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    val: Tensor


@dataclass(eq=False)
class _Value:
    """What a tensor stands for: a chain of views of a base, and the node of the latest reading."""

    base: _Base
    chain: tuple[_View, ...]
    node: fx.Node
    version: int


@dataclass(frozen=True)
class _Schema:
    """What recording needs to know of an op.

    Attributes:
        mutable: whether it writes into an argument.
        view: position of the argument that its results are views of, or None.
        composite: whether it is made of other ops.
    """

    mutable: bool
    view: int | None
    composite: bool


@dataclass(eq=False)
class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records into `graph`.

    Attributes:
        fake_mode: mode of the fakes, which must be active below.
        tags: of what is being recorded now.
        table: decompositions to apply while recording.
        graph: what is recorded; constants are `get_attr` nodes.
        constants: value of each constant by name.
    """

    fake_mode: FakeTensorMode
    tags: Tags
    table: Table
    graph: fx.Graph = field(default_factory=fx.Graph)
    constants: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._schemas: dict[Any, _Schema] = {}
        self._constant_fakes: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # spares a wrapper around every call; nothing is compiled here

    def placeholder(self, name: str, fake: Tensor) -> fx.Node:
        """Makes a tensor an input of the graph."""
        node = self.graph.placeholder(name)
        node.meta["val"] = fake
        return node

    def bind(self, tensor: Tensor, node: fx.Node) -> None:
        """Says that a tensor is fresh memory with the node's value."""
        setattr(tensor, _SLOT, _Value(_Base(node), (), node, 0))

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Node of the tensor's present value."""
        value: _Value | None = getattr(tensor, _SLOT, None)
        if value is None:
            tensor = self._lifted(tensor)
            value = getattr(tensor, _SLOT)
        if value.version != value.base.version:
            node = value.base.node
            for view in value.chain:
                node = self._call(view.target, (node, *view.args), view.kwargs, view.val)
            value.node, value.version = node, value.base.version
        return value.node

    def assign(self, tensor: Tensor, new: Tensor) -> None:
        """Writes the value of another tensor into a tensor, cast and expanded as copy_ does."""
        node, val = self.node_of(new), new
        if new.dtype != tensor.dtype:
            node, val = self._cast(node, new, tensor.dtype)
        if val.shape != tensor.shape:
            node = self._call(_aten.expand.default, (node, list(tensor.shape)), {}, tensor.detach())
        self._write(tensor, node)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Executes one call on fakes and records its functional form."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else _CPU
        if not isinstance(func, torch._ops.OpOverload):
            self._refuse(f"{func} cannot be captured", "use plain tensor operations")
        in_place = IN_PLACE.get(func)
        if in_place is not None:
            with self:
                return in_place(self.assign, *args, **kwargs)
        decomposed = self._decompose(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        schema = self._schema_of(func)
        if schema.mutable:
            return self._record_mutation(func, args, kwargs)
        if func in _LIFTS and not isinstance(args[0], FakeTensor):
            return self._lift_fresh(func, args[0])
        fake_args, fake_kwargs = self._on_fakes(args, kwargs)
        with self.fake_mode:
            result = func(*fake_args, **fake_kwargs)
        if schema.view is not None and isinstance(args[schema.view], Tensor):
            self._record_view(func, args, kwargs, result)
        elif isinstance(result, Tensor):
            self.bind(result, self._call(func, *self._on_nodes(args, kwargs), result))
        elif isinstance(result, (list, tuple)) and any(isinstance(r, Tensor) for r in result):
            node = self._call(func, *self._on_nodes(args, kwargs), result)
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self.bind(part, self._call(operator.getitem, (node, i), {}, part))
        return result

    def _decompose(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule = self.table.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self._schema_of(func).composite:
            with self:
                return func.decompose(*args, **kwargs)
        return NotImplemented

    def _schema_of(self, func: Any) -> _Schema:
        known = self._schemas.get(func)
        if known is None:
            view = None
            for returned in func._schema.returns:
                alias = returned.alias_info
                if alias is not None and not alias.is_write:
                    # A list of views is of "*", every other view of its one aliased argument.
                    aliased = [a.alias_info is not None for a in func._schema.arguments]
                    view = aliased.index(True)
            composite = func not in _ONE_KERNEL and torch._C._dispatch_has_kernel_for_dispatch_key(
                func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
            )
            known = _Schema(func._schema.is_mutable, view, composite)
            self._schemas[func] = known
        return known

    def _record_view(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        source: _Value | None = getattr(args[0], _SLOT, None)
        if source is None:
            source = getattr(self._lifted(args[0]), _SLOT)
        node = self.node_of(args[0])
        if func in _SAME:
            setattr(result, _SLOT, _Value(source.base, source.chain, node, source.base.version))
            return
        parts = [result] if isinstance(result, Tensor) else list(result)
        calls = view_of_each_part(func, args[0], args[1:], kwargs, parts)
        for part, (target, rest, named) in zip(parts, calls, strict=True):
            view = _View(target, rest, named, part)
            value = _Value(
                source.base, (*source.chain, view),
                self._call(target, (node, *rest), named, part), source.base.version,
            )  # fmt: skip
            setattr(part, _SLOT, value)

    def _record_mutation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """In-place and out= calls: the functional form's results become new values."""
        if torch.Tag.inplace_view in func.tags:
            return self._record_view_in_place(func, args, kwargs)
        form, written = functional_form(func)
        if form is None:
            self._refuse(f"{func} has no form without mutation", "use the out-of-place call")
        names = [argument.name for argument in func._schema.arguments]
        bound = dict(zip(names, args, strict=False)) | kwargs
        targets = [bound[name] for name in written]
        if form is _aten.copy.default:
            source = bound["src"]
            self.assign(targets[0], source if isinstance(source, Tensor) else torch.tensor(source))
            return targets[0]
        out_names = set(written) if func._schema.arguments[-1].is_out else set()
        inner_args = tuple(a for a, name in zip(args, names, strict=False) if name not in out_names)
        inner_kwargs = {k: v for k, v in kwargs.items() if k not in out_names}
        with self:
            results = form(*inner_args, **inner_kwargs)
        values = [results] if isinstance(results, Tensor) else list(results)
        for target, new in zip(targets, values[len(values) - len(targets) :], strict=True):
            if isinstance(target, FakeTensor):
                target.constant = None
            self.assign(target, new)
        returned = func._schema.returns
        if not returned:
            return None
        if len(returned) == 1:
            return values[0] if returned[0].alias_info is None else targets[0]
        fresh = iter(values)
        by_name = dict(zip(written, targets, strict=True))
        return tuple(
            next(fresh) if r.alias_info is None else by_name[written[i]]
            for i, r in enumerate(returned)
        )

    def _record_view_in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """unsqueeze_ and its like: the tensor is a view of what it was."""
        target, _ = functional_form(func)
        value: _Value | None = getattr(args[0], _SLOT, None)
        if target is None or value is None:
            self._refuse(f"{func} cannot be captured", "use the out-of-place call")
        node = self.node_of(args[0])
        with self.fake_mode:
            func(*args, **kwargs)
            val = args[0].detach()
        view = _View(target, args[1:], kwargs, val)
        call = self._call(target, (node, *args[1:]), kwargs, val)
        setattr(args[0], _SLOT,
                _Value(value.base, (*value.chain, view), call, value.base.version))  # fmt: skip
        return args[0]

    def _write(self, tensor: Tensor, node: fx.Node) -> None:
        """Makes the node the present value of a tensor and of the memory it is a view of."""
        if getattr(tensor, _SLOT, None) is None:
            self._refuse(
                "the step writes into a tensor that is not among its arguments",
                "pass it as an argument, or register it as a buffer of the module",
                code="E106",
            )
        value: _Value = getattr(tensor, _SLOT)
        base = value.base
        old = [base.node]
        for view in value.chain[:-1]:
            old.append(self._call(view.target, (old[-1], *view.args), view.kwargs, view.val))
        new = node
        steps = reversed(value.chain)
        for before, view in zip(reversed(old), steps, strict=False):  # no view: nothing to undo
            inverse = undo_view(view.target, before.meta["val"], view.args, view.kwargs)
            if inverse is None:
                self._refuse(
                    f"the step writes through {view.target}", "write into the tensor itself"
                )
            target, rest, needs_old = inverse
            arguments = (before, new, *rest) if needs_old else (new, *rest)
            new = self._call(target, arguments, {}, before.meta["val"])
        base.node = new
        base.version += 1
        value.node, value.version = node, base.version

    def _cast(self, node: fx.Node, val: Tensor, dtype: torch.dtype) -> tuple[fx.Node, Tensor]:
        with self.fake_mode:
            cast = val.detach().to(dtype)
        return self._call(_aten._to_copy.default, (node,), {"dtype": dtype}, cast), cast

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: Any, val: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = val
        self.tags.attach(node)
        return node

    def _on_nodes(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        def swap(x: Any) -> Any:
            if isinstance(x, Tensor):
                return self.node_of(x)
            return [swap(y) for y in x] if isinstance(x, (list, tuple)) else x

        return tuple(swap(a) for a in args), {k: swap(v) for k, v in kwargs.items()}

    def _on_fakes(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if not any(
            isinstance(x, Tensor) and not isinstance(x, FakeTensor)
            for x in pytree.tree_leaves((args, kwargs))
        ):
            return args, kwargs
        swapped: tuple[Any, Any] = pytree.tree_map_only(Tensor, self._lifted, (args, kwargs))
        return swapped

    def _lifted(self, tensor: Tensor) -> Tensor:
        """Fake of a real tensor that the step reaches, recorded as a constant."""
        if isinstance(tensor, FakeTensor):
            if getattr(tensor, _SLOT, None) is None and tensor.constant is not None:
                self.bind(tensor, self._constant(tensor.constant, tensor))
            if getattr(tensor, _SLOT, None) is None:
                self._refuse(
                    "the step uses a tensor that capture cannot trace to an argument",
                    "pass it as an argument of the step or register it as a buffer",
                    code="E106",
                )
            return tensor
        known = self._constant_fakes.get(id(tensor))
        if known is None:
            with self.fake_mode:
                fake = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
            self.bind(fake, self._constant(tensor, fake))
            known = (tensor, fake)  # the tensor is kept so that its id stays its own
            self._constant_fakes[id(tensor)] = known
        return known[1]

    def _lift_fresh(self, func: Any, tensor: Tensor) -> Tensor:
        """torch.tensor(data): a constant whose value is known to FakeTensorMode as well."""
        with self.fake_mode:
            fake: Tensor = func(tensor)
        self.bind(fake, self._constant(tensor, fake))
        return fake

    def _constant(self, value: Tensor, fake: Tensor) -> fx.Node:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = fake
        self.tags.attach(node)
        return node

    def _refuse(self, what: str, advice: str, code: str = "E112") -> NoReturn:
        raise CaptureError(what, code=code, where=current_user_line(), advice=advice)
