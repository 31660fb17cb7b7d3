"""Runs one op on shards exactly as a strategy says and puts the results together again.

Shares no code with the planner: shards are cut, pending sums made and arguments edited here, from
the documented meaning of specs, atoms and edits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from shardwright import _core
from shardwright.graph_table import table_from_fx

Spec = list[_core.Placement]
Coordinate = tuple[int, ...]


@dataclass
class Sample:
    """One call of an op.

    `fine_shapes[i]` gives tensor i as a finer view (same elements), so that its dims have several
    atoms. `exact` demands bitwise equality.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    exact: bool = True
    fine_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.op)


@dataclass
class PreparedOp:
    """A sample as a planned graph: the node of the op, its full operands and dense results."""

    sample: Sample
    graph: Any
    sharded: Any
    node: int
    operands: list[Tensor]
    dense: list[Tensor | None]


def tensors_of(args: Any) -> list[Tensor]:
    """Tensors in arguments, depth first."""
    if isinstance(args, Tensor):
        return [args]
    if isinstance(args, (list, tuple)):
        return [tensor for arg in args for tensor in tensors_of(arg)]
    return []


def replace_tensors(args: Any, replacements: Iterator[Any]) -> Any:
    """The same arguments with tensors taken from `replacements`, depth first."""
    if isinstance(args, Tensor):
        return next(replacements)
    if isinstance(args, (list, tuple)):
        return type(args)(replace_tensors(arg, replacements) for arg in args)
    return args


def as_list(result: Any) -> list[Tensor | None]:
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    return [value if isinstance(value, Tensor) else None for value in values]


def prepare(sample: Sample, registry: Any) -> PreparedOp:
    """Plans a graph that holds nothing but the op (and the views that cut its operands)."""
    operands = tensors_of(sample.args)
    dense = as_list(runnable(sample.op)(*sample.args, **sample.kwargs))
    graph = fx.Graph()
    nodes = []
    placeholders = []
    for index, operand in enumerate(operands):
        fine = sample.fine_shapes.get(index, tuple(operand.shape))
        placeholder = graph.placeholder(f"x{index}")
        placeholder.meta["val"] = operand.reshape(fine)
        placeholders.append(placeholder)
    for index, operand in enumerate(operands):
        node = placeholders[index]
        if index in sample.fine_shapes:
            node = graph.call_function(torch.ops.aten.view.default, (node, list(operand.shape)))
            node.meta["val"] = operand
        nodes.append(node)
    call = graph.call_function(
        sample.op, replace_tensors(sample.args, iter(nodes)), dict(sample.kwargs)
    )
    call.meta["val"] = dense[0] if len(dense) == 1 else tuple(dense)
    graph.output((call,))
    table = table_from_fx(fx.GraphModule({}, graph))
    sharded = _core.ShardedGraph(table, registry)
    return PreparedOp(sample, table, sharded, len(table) - 1, operands, dense)


def ranks(mesh: Sequence[int]) -> list[Coordinate]:
    return list(itertools.product(*(range(size) for size in mesh)))


def part_of_atom(
    atom: int, size: int, spec: Spec, coordinate: Coordinate, mesh: Sequence[int]
) -> tuple[int, int]:
    """(start, length) of a rank's part of an atom: axes split it, the outermost first."""
    axes = [axis for axis, p in enumerate(spec) if p.kind == "S" and p.atom == atom]
    axes.sort(key=lambda axis: spec[axis].order)
    start, length = 0, size
    for axis in axes:
        assert length % mesh[axis] == 0
        length //= mesh[axis]
        start += coordinate[axis] * length
    return start, length


def atom_order(dims: Sequence[Sequence[int]]) -> list[int]:
    return [atom for dim in dims for atom in dim]


def window(
    atoms: _core.TensorAtoms,
    spec: Spec,
    coordinate: Coordinate,
    mesh: Sequence[int],
) -> list[tuple[int, int]]:
    """A rank's part of each atom, in the order of the tensor's dims."""
    sizes, dims = atoms.sizes, atoms.dims
    return [part_of_atom(a, sizes[a], spec, coordinate, mesh) for a in atom_order(dims)]


def local_shape(
    atoms: _core.TensorAtoms,
    spec: Spec,
    coordinate: Coordinate,
    mesh: Sequence[int],
    shape: Sequence[int],
) -> list[int]:
    sizes, dims = atoms.sizes, atoms.dims
    return [
        math.prod(part_of_atom(a, sizes[a], spec, coordinate, mesh)[1] for a in dim)
        if shape[d] != 0
        else 0
        for d, dim in enumerate(dims)
    ]


def cut(
    full: Tensor, atoms: Any, spec: Spec, coordinate: Coordinate, mesh: Sequence[int]
) -> Tensor:
    """A rank's part of a tensor that is whole or one summand of a pending sum."""
    if full.numel() == 0:
        return full
    sizes, dims = atoms.sizes, atoms.dims
    view = full.reshape([sizes[a] for a in atom_order(dims)])
    for position, (start, length) in enumerate(window(atoms, spec, coordinate, mesh)):
        view = view.narrow(position, start, length)
    return view.reshape(local_shape(atoms, spec, coordinate, mesh, full.shape)).clone()


def summands(
    full: Tensor, spec: Spec, mesh: Sequence[int], generator: torch.Generator
) -> dict[Coordinate, Tensor]:
    """Random tensors, one per coordinate on the pending axes, that add up to `full`."""
    pending = [axis for axis, p in enumerate(spec) if p.kind == "P"]
    keys = list(itertools.product(*(range(mesh[axis]) for axis in pending)))
    parts = {}
    rest = full.clone()
    for key in keys[:-1]:
        part = torch.randint(-4, 5, full.shape, generator=generator).to(full.dtype)
        parts[key] = part
        rest = rest - part
    parts[keys[-1]] = rest
    return parts


def edited_args(
    op: PreparedOp,
    rule: dict[str, Any],
    strategy: dict[str, Any],
    coordinate: Coordinate,
    mesh: Sequence[int],
    operands: list[Tensor],
    output_shapes: list[list[int]],
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The op a rank runs and its local arguments."""
    table = op.graph.node(op.node)
    args = list(full_positional(op.sample.op, op.sample.args, op.sample.kwargs))
    kwargs = {k: v for k, v in op.sample.kwargs.items() if is_keyword_only(op.sample.op, k)}
    args = list(replace_tensors(args, iter(operands)))
    assert len(args) == len(table["args"])
    is_sharded = any(choice >= 0 for choice in strategy["axis_choice"])
    offset_factors = [
        choice
        for choice in strategy["axis_choice"]
        if choice >= 0 and rule["factors"][choice]["needs_offset"]
    ]
    uses_offset_op = bool(offset_factors)
    uses_sharded_op = is_sharded and bool(rule["sharded_op"])
    extra: dict[int, Any] = {}
    for edit in rule["edits"]:
        output = edit["output"]
        ref = _core.ValueRef(op.node, output)
        atoms = op.sharded.atoms(ref)
        spec = strategy["outputs"][output]
        parts = window(atoms, spec, coordinate, mesh)
        kind = edit["kind"]
        if kind == "local_shape":
            value: Any = list(output_shapes[output])
        elif kind == "local_dim":
            value = output_shapes[output][edit["dim"]]
        elif kind == "scale":
            if edit["operand"] < 0:
                whole, ref = op.dense[output], _core.ValueRef(op.node, output)
                whole_spec = spec
            else:
                whole = op.operands[edit["operand"]]
                ref = op.graph.operands(op.node)[edit["operand"]]
                whole_spec = strategy["operands"][edit["operand"]]
            assert whole is not None
            local = local_shape(op.sharded.atoms(ref), whole_spec, coordinate, mesh, whole.shape)[
                edit["dim"]
            ]
            size = whole.shape[edit["dim"]]
            old = args[edit["arg"]]
            old = old if edit["element"] < 0 else old[edit["element"]]
            value = scaled(old, local, size)
        elif kind == "global_atoms":
            value = [atoms.sizes[a] for a in atom_order(atoms.dims)]
        elif kind == "local_atoms":
            value = [length for _, length in parts]
        elif kind == "atom_starts":
            value = [start for start, _ in parts]
        else:
            raise AssertionError(kind)
        if edit["arg"] < 0:
            extra[-1 - edit["arg"]] = value
        elif edit["element"] >= 0:
            args[edit["arg"]] = list(args[edit["arg"]])
            args[edit["arg"]][edit["element"]] = value
        else:
            args[edit["arg"]] = value
    name = table["op"]
    if uses_offset_op or uses_sharded_op:
        args += [extra[k] for k in sorted(extra)]
        name = rule["offset_op"] if uses_offset_op else rule["sharded_op"]
    if uses_offset_op:
        args.append(offset_of(op, rule, strategy, offset_factors[0], coordinate, mesh))
    return resolve(name), args, kwargs


def scaled(value: int, local: int, size: int) -> int:
    if local == size:
        return value
    value = min(value + size if value < 0 else value, size)
    assert value * local % size == 0
    return value * local // size


def offset_of(
    op: PreparedOp,
    rule: dict[str, Any],
    strategy: dict[str, Any],
    factor: int,
    coordinate: Coordinate,
    mesh: Sequence[int],
) -> int:
    """First global index of this rank's part of a factor."""
    tensors = [
        *zip(rule["operands"], strategy["operands"], op.graph.operands(op.node), strict=True),
        *zip(
            rule["outputs"],
            strategy["outputs"],
            [_core.ValueRef(op.node, o) for o in range(len(rule["outputs"]))],
            strict=True,
        ),
    ]
    for dims, spec, ref in tensors:
        atoms = op.sharded.atoms(ref)
        sizes, atom_dims = atoms.sizes, atoms.dims
        for d, dim in enumerate(dims):
            if factor in dim:
                atom = atom_dims[d][dim.index(factor)]
                start, _ = part_of_atom(atom, sizes[atom], spec, coordinate, mesh)
                return start * rule["factors"][factor]["offset_stride"]
    raise AssertionError("the factor appears nowhere")


def is_keyword_only(op: Any, name: str) -> bool:
    return any(a.name == name and a.kwarg_only for a in op._schema.arguments)


def full_positional(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Positional arguments with ATen defaults filled in, as the table has them."""
    result = list(args)
    if op.namespace == "shardwright":
        return result
    for argument in op._schema.arguments[len(result) :]:
        if argument.kwarg_only:
            break
        result.append(kwargs.get(argument.name, argument.default_value))
    return result


def resolve(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return runnable(op)


def runnable(op: Any) -> Any:
    """The op, or its decomposition where torch has no CPU kernel of it."""
    if op is torch.ops.aten._fused_rms_norm_backward.default:
        return torch._decomp.decomposition_table[op]
    return op


def run_strategy(op: PreparedOp, strategy: dict[str, Any], mesh: Sequence[int]) -> list[Tensor]:
    """Runs every rank and puts its outputs together; fails where replicas differ."""
    rule = op.sharded.rule(op.node)
    generator = torch.Generator().manual_seed(7)
    refs = op.graph.operands(op.node)
    parts = [
        summands(full, spec, mesh, generator)
        for full, spec in zip(op.operands, strategy["operands"], strict=True)
    ]
    results: dict[Coordinate, list[Tensor | None]] = {}
    for coordinate in ranks(mesh):
        local = []
        for i, spec in enumerate(strategy["operands"]):
            key = tuple(coordinate[axis] for axis, p in enumerate(spec) if p.kind == "P")
            local.append(cut(parts[i][key], op.sharded.atoms(refs[i]), spec, coordinate, mesh))
        output_shapes = [
            local_shape(
                op.sharded.atoms(_core.ValueRef(op.node, o)),
                spec,
                coordinate,
                mesh,
                [0] if op.dense[o] is None else op.dense[o].shape,  # type: ignore[union-attr]
            )
            for o, spec in enumerate(strategy["outputs"])
        ]
        target, args, kwargs = edited_args(
            op, rule, strategy, coordinate, mesh, local, output_shapes
        )
        if op.sample.name in ("aten.view.default", "aten._unsafe_view.default"):
            target = torch.ops.aten.reshape.default
        outputs = as_list(target(*args, **kwargs))
        for o, output in enumerate(outputs):
            if output is not None and op.dense[o] is not None:
                assert list(output.shape) == output_shapes[o], (output.shape, output_shapes[o])
        results[coordinate] = outputs
    return [
        join([results[c][o] for c in ranks(mesh)], op, o, strategy["outputs"][o], mesh)
        for o in range(len(op.dense))
        if op.dense[o] is not None
    ]


def join(
    locals_: list[Any], op: PreparedOp, output: int, spec: Spec, mesh: Sequence[int]
) -> Tensor:
    """Completes pending reductions, checks replicas, lays the parts side by side."""
    dense = op.dense[output]
    assert dense is not None
    atoms = op.sharded.atoms(_core.ValueRef(op.node, output))
    sizes, dims = atoms.sizes, atoms.dims
    pending = [axis for axis, p in enumerate(spec) if p.kind == "P"]
    groups: dict[Coordinate, list[Tensor]] = {}
    coordinates = ranks(mesh)
    for coordinate, local in zip(coordinates, locals_, strict=True):
        key = tuple(-1 if axis in pending else c for axis, c in enumerate(coordinate))
        groups.setdefault(key, []).append(local)
    order = [sizes[a] for a in atom_order(dims)]
    full = torch.zeros(order, dtype=dense.dtype)
    written: dict[tuple[tuple[int, int], ...], Tensor] = {}
    for key, members in groups.items():
        value = members[0]
        for member in members[1:]:
            reduce = {spec[axis].reduce for axis in pending}
            assert len(reduce) == 1
            combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
            value = combine[reduce.pop()](value, member)
        coordinate = tuple(max(c, 0) for c in key)
        place = tuple(window(atoms, spec, coordinate, mesh))
        if place in written:
            assert matches(written[place], value, op.sample.exact), "replicas differ"
            continue
        written[place] = value
        target = full
        for position, (start, length) in enumerate(place):
            target = target.narrow(position, start, length)
        target.copy_(value.reshape(target.shape))
    assert sum(math.prod(n for _, n in place) for place in written) == full.numel()
    return full.reshape(dense.shape)


def matches(a: Tensor, b: Tensor, exact: bool) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if exact or not a.dtype.is_floating_point:
        return torch.equal(a, b)
    rtol, atol = (1e-9, 1e-9) if a.dtype == torch.float64 else (1e-5, 1e-5)
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def check_sample(sample: Sample, registry: Any, meshes: Sequence[Sequence[int]]) -> int:
    """Runs every strategy on every mesh; returns how many there were.

    Raises:
        AssertionError: naming the strategy whose result differs from the op on whole tensors.
    """
    op = prepare(sample, registry)
    dense = [tensor for tensor in op.dense if tensor is not None]
    count = 0
    for mesh in meshes:
        for strategy in op.sharded.strategies(op.node, list(mesh)):
            where = (
                f"{sample.name} on {mesh}: {op.sharded.rule_text(op.node)}; "
                f"{strategy['operands']} -> {strategy['outputs']}"
            )
            try:
                joined = run_strategy(op, strategy, mesh)
            except Exception as error:
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
            for got, expected in zip(joined, dense, strict=True):
                assert matches(got, expected, sample.exact), f"{where}:\n{got}\nbut\n{expected}"
            count += 1
    return count
