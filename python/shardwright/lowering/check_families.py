"""How the static checker derives an op's results from its operands, family by family.

Written from the ops' meaning, not from csrc/sharding/rules: labels name the dims of operands and
results, a label that is missing from a result is summed over. An op that is not here is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from shardwright.lowering.held import (
    CheckError,
    Held,
    Mesh,
    PerRank,
    split_axes,
    whole_dim,
)
from shardwright.lowering.lattice import IrregularError, Lattice


@dataclass
class Call:
    """One compute instruction as the checker sees it.

    Attributes:
        op: its name, such as "aten.mm.default".
        args: per rank nothing: arguments as in the graph, with a `Held` for each tensor.
        local_args: arguments on each rank, integers evaluated; tensors as `Held`.
        results: what the table declares.
        mesh: the mesh.
        localised: positions of arguments that may differ from the graph's.
    """

    op: str
    args: Sequence[Any]
    local_args: Sequence[Sequence[Any]]
    results: Sequence[Held]
    mesh: Mesh
    localised: set[int] = field(default_factory=set)

    def tensor(self, index: int) -> Held:
        """Tensor argument `index`."""
        value = self.args[index]
        if not isinstance(value, Held):
            raise CheckError(f"argument {index} is no tensor")
        return value

    def tensors(self) -> list[Held]:
        """All tensor arguments, depth first."""
        found: list[Held] = []
        for value in self.args:
            items = value if isinstance(value, (list, tuple)) else [value]
            found += [item for item in items if isinstance(item, Held)]
        return found

    def has(self, index: int) -> bool:
        """Whether argument `index` is a tensor."""
        return index < len(self.args) and isinstance(self.args[index], Held)


Family = Callable[[Call], list[Held]]
Linear = Callable[[Sequence[Held], int], str]


def no_partial(operands: Sequence[Held], axis: int) -> str:
    """Pending reductions do not pass."""
    if any(held.partial[axis] for held in operands if not held.is_zero):
        raise CheckError(f"an operand is partial on axis {axis}, and the op is not linear")
    return ""


def all_linear(operands: Sequence[Held], axis: int) -> str:
    """Sums of operands: all are partial or none is."""
    kinds = {held.partial[axis] for held in operands if not held.is_zero}
    if len(kinds) > 1 or not kinds <= {"", "sum"}:
        raise CheckError(f"adds partial and complete values on axis {axis}")
    return next(iter(kinds), "")


def one_linear(operands: Sequence[Held], axis: int) -> str:
    """Products: at most one operand is partial."""
    kinds = [held.partial[axis] for held in operands if held.partial[axis]]
    if len(kinds) > 1 or not set(kinds) <= {"sum"}:
        raise CheckError(f"multiplies partial values on axis {axis}")
    return kinds[0] if kinds else ""


def linear_in(position: int) -> Linear:
    """Linear in one operand, given the others."""

    def linear(operands: Sequence[Held], axis: int) -> str:
        no_partial([held for i, held in enumerate(operands) if i != position], axis)
        pending = operands[position].partial[axis]
        if pending not in ("", "sum"):
            raise CheckError(f"scales a pending {pending} on axis {axis}")
        return pending

    return linear


first_linear = linear_in(0)


def choice(operands: Sequence[Held], axis: int) -> str:
    """Either of two values by a condition: pending together, the condition complete."""
    no_partial(operands[:1], axis)
    return all_linear(operands[1:], axis)


def passing(operands: Sequence[Held], axis: int) -> str:
    """Moves elements of one operand: any pending reduction passes."""
    return operands[0].partial[axis]


def contract(
    call: Call,
    operands: Sequence[tuple[Held, str]],
    results: Sequence[str],
    linear: Linear = no_partial,
    reduce: str = "sum",
    whole: str = "",
    known: dict[str, PerRank] | None = None,
) -> list[Held]:
    """Results of an op in label notation.

    Args:
        call: the op.
        operands: with one letter per dim; dims of size 1 under a longer label are broadcast.
        results: letters of each result.
        linear: how pending reductions of the operands pass.
        reduce: what completes a label that results lack.
        whole: labels that may not be divided.
        known: lattices of labels that no operand has.
    """
    mesh = call.mesh
    lattices: dict[str, PerRank] = dict(known or {})
    sizes: dict[str, int] = {}
    for held, labels in operands:
        if len(labels) != len(held.shape):
            raise CheckError(f"an operand has {len(held.shape)} dims, not {len(labels)}")
        for label, size in zip(labels, held.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    for held, labels in operands:
        for label, size, values in zip(labels, held.shape, held.dims, strict=True):
            if size != sizes[label]:
                if size != 1:
                    raise CheckError(f"sizes {size} and {sizes[label]} meet")
            elif lattices.setdefault(label, values) != values:
                raise CheckError("operands are divided differently")
    for label in whole:
        if label in lattices and lattices[label] != whole_dim(sizes[label], mesh):
            raise CheckError("divides a dim that the op needs whole")
    outputs = []
    for index, labels in enumerate(results):
        passed = [linear([h for h, _ in operands], a) for a in range(len(mesh.shape))]
        for label in lattices:
            if label in labels:
                continue
            for axis in split_axes(lattices[label], sizes.get(label, 1), mesh):
                if passed[axis]:
                    raise CheckError(f"is pending twice on axis {axis}")
                passed[axis] = reduce
        shape = call.results[index].shape
        if len(shape) != len(labels):
            raise CheckError(f"result {index} has {len(shape)} dims, not {len(labels)}")
        dims = tuple(
            whole_dim(1, mesh) if size == 1 else lattices[label]
            for label, size in zip(labels, shape, strict=True)
        )
        outputs.append(Held(shape, dims, tuple(passed)))
    return outputs


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def pointwise(linear: Linear) -> Family:
    """Elementwise with broadcasting."""

    def family(call: Call) -> list[Held]:
        rank = len(call.results[0].shape)
        labels = _LETTERS[:rank]
        operands = [(h, labels[rank - len(h.shape) :]) for h in call.tensors()]
        return contract(call, operands, [labels] * len(call.results), linear)

    return family


def reduction(linear: Linear, reduce: str) -> Family:
    """Over the dims in argument 1, keepdim in argument 2."""

    def family(call: Call) -> list[Held]:
        held = call.tensor(0)
        gone = {d % len(held.shape) for d in call.args[1]}
        keep = len(call.args) > 2 and bool(call.args[2])
        labels = _LETTERS[: len(held.shape)]
        kept = "".join(x for d, x in enumerate(labels) if d not in gone)
        if not keep:
            return contract(call, [(held, labels)], [kept], linear, reduce)
        (flat,) = contract(
            Call(call.op, call.args, (), [_without(call.results[0], gone)], call.mesh),
            [(held, labels)], [kept], linear, reduce,
        )  # fmt: skip
        dims = iter(flat.dims)
        full = tuple(
            whole_dim(1, call.mesh) if d in gone else next(dims) for d in range(len(labels))
        )
        return [Held(call.results[0].shape, full, flat.partial)]

    return family


def _without(held: Held, gone: set[int]) -> Held:
    keep = [d for d in range(len(held.shape)) if d not in gone]
    return Held(tuple(held.shape[d] for d in keep), tuple(held.dims[d] for d in keep), held.partial)


def along(position: int, linear: Linear = no_partial) -> Family:
    """Along one dim given by argument `position`, which must be whole (softmax, cumsum)."""

    def family(call: Call) -> list[Held]:
        shape = call.tensor(0).shape
        labels = _LETTERS[: len(shape)]
        whole = labels[call.args[position] % len(shape)] if shape else ""
        operands = [(held, labels) for held in call.tensors()]
        return contract(call, operands, [labels] * len(call.results), linear, whole=whole)

    return family


def products(*operands: str, result: str) -> Family:
    """Matrix products: `products("mk", "kn", result="mn")`."""

    def family(call: Call) -> list[Held]:
        pairs = [(call.tensor(i), labels) for i, labels in enumerate(operands)]
        return contract(call, pairs, [result], one_linear)

    return family


def addmm(call: Call) -> list[Held]:
    """Bias + x @ w: the bias is pending exactly where the product is."""
    pairs = [(call.tensor(1), "mk"), (call.tensor(2), "kn")]
    (product,) = contract(call, pairs, ["mn"], one_linear)
    bias = call.tensor(0)
    labels = "mn"[2 - len(bias.shape) :]
    return contract(call, [(bias, labels), (product, "mn")], ["mn"], all_linear)


def view(call: Call) -> list[Held]:
    """Reshape: dims are merged and split in row-major order."""
    held, result = call.tensor(0), call.results[0]
    call.localised.add(1)
    ranks = range(len(call.mesh.coordinates))
    per_rank = [
        reshaped(held.shape, result.shape, tuple(values[rank] for values in held.dims))
        for rank in ranks
    ]
    for rank in ranks:
        wanted = [lattice.size for lattice in per_rank[rank]]
        given = list(call.local_args[rank][1])
        if given != wanted and -1 not in given:
            raise CheckError(f"rank {rank} reshapes to {given}, its shard is {wanted}")
    dims = tuple(tuple(per_rank[r][d] for r in ranks) for d in range(len(result.shape)))
    return [Held(result.shape, dims, held.partial, held.is_zero)]


@cache
def reshaped(
    old: tuple[int, ...], new: tuple[int, ...], dims: tuple[Lattice, ...]
) -> tuple[Lattice, ...]:
    """Lattices of the new dims of a reshape."""
    result: list[Lattice] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, second = i, j
        left = right = 1
        while True:
            if left == right and (i > first or j > second):
                break
            if i < len(old) and (left <= right or j == len(new)):
                left *= old[i]
                i += 1
            elif j < len(new):
                right *= new[j]
                j += 1
            else:
                break
        if left != right:
            raise IrregularError("reshapes to another number of elements")
        merged = Lattice.product(dims[first:i], old[first:i])
        result += merged.factors(new[second:j])
    return tuple(result)


def permute(call: Call) -> list[Held]:
    """Dims in another order."""
    held = call.tensor(0)
    order = [d % len(held.shape) for d in call.args[1]]
    dims = tuple(held.dims[d] for d in order)
    shape = tuple(held.shape[d] for d in order)
    return [Held(shape, dims, held.partial, held.is_zero)]


def expand(call: Call) -> list[Held]:
    """Dims of size 1 grow; what grows is equal everywhere, so any division of it is right."""
    held, result = call.tensor(0), call.results[0]
    call.localised.add(1)
    missing = len(result.shape) - len(held.shape)
    dims = []
    for d, size in enumerate(result.shape):
        own = d - missing
        grown = own < 0 or held.shape[own] != size
        dims.append(result.dims[d] if grown else held.dims[own])
    _check_sizes(call, 1, dims)
    return [Held(result.shape, tuple(dims), held.partial, held.is_zero)]


def _check_sizes(call: Call, position: int, dims: Sequence[PerRank]) -> None:
    """The shape argument of every rank is the shape of its shard."""
    for rank, args in enumerate(call.local_args):
        wanted = [values[rank].size for values in dims]
        given = [w if g == -1 else g for g, w in zip(args[position], wanted, strict=True)]
        if given != wanted:
            raise CheckError(f"rank {rank} has size argument {given}, its shard is {wanted}")


def constant(position: int | None) -> Family:
    """Equal elements everywhere: any division is right, as declared."""

    def family(call: Call) -> list[Held]:
        result = call.results[0]
        if position is not None:
            call.localised.add(position)
            _check_sizes(call, position, result.dims)
        zero = call.op.startswith("aten.full.") and call.args[1] == 0
        return [Held(result.shape, result.dims, ("",) * len(call.mesh.shape), zero)]

    return family


def take_slice(call: Call) -> list[Held]:
    """A window of one dim; bounds are local where the dim is divided inside of the window."""
    held, result = call.tensor(0), call.results[0]
    call.localised |= {2, 3}
    dim, start, step = call.args[1] % len(held.shape), call.args[2], call.args[4]
    values = []
    for rank, args in enumerate(call.local_args):
        own = held.dims[dim][rank]
        if step == 1:
            low, high, _ = slice(args[2], args[3]).indices(own.size)
            values.append(own.window(low, high - low).scaled(1, -start))
        elif own.is_whole(held.shape[dim]) and (args[2], args[3]) == tuple(call.args[2:4]):
            values.append(Lattice.whole(result.shape[dim]))
        else:
            raise CheckError("takes steps through a divided dim")
    dims = tuple(tuple(values) if d == dim else held.dims[d] for d in range(len(held.shape)))
    return [Held(result.shape, dims, held.partial, held.is_zero)]


def select(call: Call) -> list[Held]:
    """One index of a whole dim."""
    held = call.tensor(0)
    dim = call.args[1] % len(held.shape)
    if held.dims[dim] != whole_dim(held.shape[dim], call.mesh):
        raise CheckError("selects from a divided dim")
    return [_without(held, {dim})]


def cat(call: Call) -> list[Held]:
    """Pieces one after the other; a common inner division stays."""
    pieces = list(call.args[0])
    first = pieces[0]
    dim = call.args[1] % len(first.shape)
    if any(p.partial != first.partial for p in pieces if not p.is_zero):
        raise CheckError("joins partial and complete values")
    partial = next((p.partial for p in pieces if not p.is_zero), first.partial)
    dims = []
    for d in range(len(first.shape)):
        if d != dim:
            if any(p.dims[d] != first.dims[d] for p in pieces):
                raise CheckError("operands are divided differently")
            dims.append(first.dims[d])
            continue
        if all(p.dims[d] == whole_dim(p.shape[d], call.mesh) for p in pieces):
            dims.append(whole_dim(call.results[0].shape[d], call.mesh))
            continue
        size = first.shape[d]
        if any(p.shape[d] != size for p in pieces):
            raise CheckError("joins divided pieces of different sizes")
        joined = [
            Lattice.joined([p.dims[d][rank].scaled(1, i * size) for i, p in enumerate(pieces)], 1)
            for rank in range(len(call.mesh.coordinates))
        ]
        dims.append(tuple(joined))
    return [Held(call.results[0].shape, tuple(dims), partial)]


def stack(call: Call) -> list[Held]:
    """Pieces along a new dim."""
    pieces = list(call.args[0])
    dim = call.args[1] % len(call.results[0].shape) if len(call.args) > 1 else 0
    first = pieces[0]
    if any(p.partial != first.partial or p.dims != first.dims for p in pieces):
        raise CheckError("stacks values that are divided or pending differently")
    dims = list(first.dims)
    dims.insert(dim, whole_dim(len(pieces), call.mesh))
    return [Held(call.results[0].shape, tuple(dims), first.partial)]


def pad(call: Call) -> list[Held]:
    """Padded dims must be whole."""
    held, pads = call.tensor(0), call.args[1]
    dims = list(held.dims)
    for i in range(len(pads) // 2):
        d = len(held.shape) - 1 - i
        if pads[2 * i] or pads[2 * i + 1]:
            if dims[d] != whole_dim(held.shape[d], call.mesh):
                raise CheckError("pads a divided dim")
            dims[d] = whole_dim(call.results[0].shape[d], call.mesh)
    partial = held.partial
    if any(partial) and call.args[2] != 0:
        raise CheckError("pads a pending value with something else than zero")
    return [Held(call.results[0].shape, tuple(dims), partial, held.is_zero)]


def matrices(call: Call) -> list[Held]:
    """Ops on whole matrices in the last two dims (tril, triu)."""
    held = call.tensor(0)
    labels = _LETTERS[: len(held.shape)]
    return contract(call, [(held, labels)], [labels], first_linear, whole=labels[-2:])
