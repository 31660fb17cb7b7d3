"""The static checker's table of ops: which family each belongs to. See check_families."""

from __future__ import annotations

from shardwright.lowering.check_families import (
    Call,
    Family,
    Linear,
    addmm,
    all_linear,
    along,
    cat,
    choice,
    constant,
    contract,
    expand,
    first_linear,
    linear_in,
    matrices,
    no_partial,
    one_linear,
    pad,
    permute,
    pointwise,
    products,
    reduction,
    select,
    stack,
    take_slice,
    view,
)
from shardwright.lowering.held import CheckError, Held, Mesh, PerRank, UnknownOpError, whole_dim
from shardwright.lowering.lattice import Lattice

_PLAIN_POINTWISE = (
    "abs", "ceil", "clamp", "cos", "eq", "erf", "exp", "expm1", "floor", "ge", "gelu",
    "gt", "hardtanh", "isfinite", "isinf", "isnan", "le", "leaky_relu",
    "lerp", "log", "log1p", "log2", "logical_and", "logical_not", "logical_or", "lt",
    "maximum", "minimum", "ne", "pow", "reciprocal", "relu", "rsqrt", "rsub",
    "sigmoid", "sign", "silu", "sin", "sqrt", "square",
    "tanh", "bitwise_and", "bitwise_or", "bitwise_not",
    "bitwise_xor", "clamp_min", "clamp_max", "floor_divide", "remainder", "fmod", "softplus",
    "addcmul", "addcdiv",
)  # fmt: skip


def _offset_dim(call: Call, held: Held, dim: int, position: int) -> PerRank:
    """A dim held in contiguous parts, whose first index every rank passes as an argument."""
    call.localised.add(position)
    for rank, lattice in enumerate(held.dims[dim]):
        args = call.local_args[rank]
        offset = args[position] if len(args) > position else 0
        if lattice != Lattice.whole(lattice.size).scaled(1, offset):
            raise CheckError(f"rank {rank} says its part starts at {offset}, it does not")
    return held.dims[dim]


def _embedding(call: Call) -> list[Held]:
    weight, index = call.tensor(0), call.tensor(1)
    labels = "abcdefgh"[: len(index.shape)]
    whole = "v"
    if call.op.startswith("shardwright."):
        _offset_dim(call, weight, 0, 5)
        whole = ""
    return contract(
        call, [(weight, "vz"), (index, labels)], [labels + "z"], first_linear, whole=whole
    )


def _embedding_backward(call: Call) -> list[Held]:
    grad, index = call.tensor(0), call.tensor(1)
    labels = "abcdefgh"[: len(index.shape)]
    call.localised |= {2, 5}
    size = call.results[0].shape[0]
    rows = []
    for args in call.local_args:
        offset = args[5] if call.op.startswith("shardwright.") else 0
        rows.append(Lattice.whole(args[2]).scaled(1, offset))
    if not call.op.startswith("shardwright.") and tuple(rows) != whole_dim(size, call.mesh):
        raise CheckError("makes only some rows of an embedding's gradient")
    pairs = [(grad, labels + "z"), (index, labels)]
    empty = Held(call.results[0].shape[:1], (tuple(rows),), ("",) * len(call.mesh.shape))
    pairs.append((empty, "v"))
    return contract(call, pairs, ["vz"], first_linear)


def _arange(call: Call) -> list[Held]:
    if not call.op.startswith("shardwright."):
        dims = whole_dim(call.results[0].shape[0], call.mesh)
    else:
        dims = tuple(Lattice.whole(args[3]).scaled(1, args[4]) for args in call.local_args)
        call.localised |= {3, 4}
    return [Held(call.results[0].shape, (dims,), ("",) * len(call.mesh.shape))]


def _sum_exp(call: Call) -> list[Held]:
    return contract(call, [(call.tensor(0), "rv"), (call.tensor(1), "r")], ["r"])


def _pick(call: Call) -> list[Held]:
    _offset_dim(call, call.tensor(0), 1, 2)
    return contract(call, [(call.tensor(0), "rv"), (call.tensor(1), "r")], ["r"], first_linear)


def _softmax_minus_onehot(call: Call) -> list[Held]:
    _offset_dim(call, call.tensor(0), 1, 4)
    pairs = [(call.tensor(0), "rv"), *((call.tensor(i), "r") for i in (1, 2, 3))]
    return contract(call, pairs, ["rv"], linear_in(3))


def _grouped(held: Held, num_groups: int) -> Held:
    """[b, h, ...] with the heads as [groups, heads of a group]."""
    each = held.shape[1] // num_groups
    pairs = [lattice.factors([num_groups, each]) for lattice in held.dims[1]]
    split = (tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    shape = (held.shape[0], num_groups, each, *held.shape[2:])
    return Held(shape, (held.dims[0], *split, *held.dims[2:]), held.partial)


def _ungrouped(held: Held) -> Held:
    """The inverse of `_grouped`."""
    sizes = held.shape[1:3]
    pairs = zip(held.dims[1], held.dims[2], strict=True)
    merged = tuple(Lattice.product(pair, sizes) for pair in pairs)
    shape = (held.shape[0], sizes[0] * sizes[1], *held.shape[3:])
    return Held(shape, (held.dims[0], merged, *held.dims[3:]), held.partial)


def _attention(
    call: Call,
    operands: list[tuple[Held, str]],
    results: list[str],
    num_groups: int,
    linear: Linear = no_partial,
) -> list[Held]:
    """Attention: batch and head groups (label g, with r heads each) are free, the rest whole."""
    pairs = [
        (_grouped(held, num_groups), labels) if "r" in labels else (held, labels)
        for held, labels in operands
    ]
    found = []
    for result, labels in zip(call.results, results, strict=True):
        is_grouped = "r" in labels
        shown = _grouped(result, num_groups) if is_grouped else result
        one = Call(call.op, call.args, call.local_args, [shown], call.mesh)
        (held,) = contract(one, pairs, [labels], linear, whole="rmnef")
        found.append(_ungrouped(held) if is_grouped else held)
    return found


def _mask(call: Call, position: int, query: Held) -> list[tuple[Held, str]]:
    """A mask [b or 1, h or 1, m, n]."""
    if not call.has(position):
        return []
    mask = call.tensor(position)
    return [(mask, "bgrmn")] if mask.shape[1] == query.shape[1] else [(mask, "bgmn")]


def _sdpa(call: Call) -> list[Held]:
    query, key, value = (call.tensor(i) for i in range(3))
    pairs = [(query, "bgrme"), (key, "bgne"), (value, "bgnf"), *_mask(call, 3, query)]
    results = ["bgrmf", "bgrm"][: len(call.results)]
    return _attention(call, pairs, results, key.shape[1])


def _sdpa_backward(call: Call) -> list[Held]:
    query, key, value = (call.tensor(i) for i in range(1, 4))
    pairs = [
        (call.tensor(0), "bgrmf"), (query, "bgrme"), (key, "bgne"), (value, "bgnf"),
        *_mask(call, 4, query), (call.tensor(5), "bgrmf"), (call.tensor(6), "bgrm"),
    ]  # fmt: skip
    return _attention(call, pairs, ["bgrme", "bgne", "bgnf"], key.shape[1], first_linear)


_IMAGE, _WINDOW, _RESULT = "yxw", "kls", "YXW"


def _flat(held: Held, labels: str, mesh: Mesh) -> tuple[Held, str]:
    """Without the spatial dims, which must be whole."""
    spatial = _IMAGE + _WINDOW + _RESULT
    keep = []
    for d, label in enumerate(labels):
        if label not in spatial:
            keep.append(d)
        elif held.dims[d] != whole_dim(held.shape[d], mesh):
            raise CheckError("divides an image or a window")
    dims = tuple(held.dims[d] for d in keep)
    shape = tuple(held.shape[d] for d in keep)
    return Held(shape, dims, held.partial), "".join(labels[d] for d in keep)


def _convolved(call: Call, pairs: list[tuple[Held, str]], index: int, labels: str) -> Held:
    """One result of a convolution or of its backward: a product over the free labels."""
    result = call.results[index]
    spatial = {
        label: whole_dim(size, call.mesh)
        for label, size in zip(labels, result.shape, strict=True)
        if label in _IMAGE + _WINDOW + _RESULT
    }
    one = Call(call.op, call.args, call.local_args, [result], call.mesh)
    flat = [_flat(held, names, call.mesh) for held, names in pairs]
    (held,) = contract(one, flat, [labels], one_linear, known=spatial)
    return held


def _refuse_groups(groups: int) -> None:
    if groups != 1:
        raise UnknownOpError("convolution with groups")


def _kernel(transposed: bool, rank: int) -> str:
    """Labels of a weight: [outputs, inputs, ...], of a transposed convolution [inputs, outputs]."""
    return ("co" if transposed else "oc") + _WINDOW[:rank]


def _convolution(call: Call) -> list[Held]:
    """Image, weight, bias, stride, padding, dilation, transposed, output padding, groups."""
    _refuse_groups(call.args[8])
    rank = len(call.tensor(0).shape) - 2
    kernel = _kernel(call.args[6], rank)
    pairs = [(call.tensor(0), f"nc{_IMAGE[:rank]}"), (call.tensor(1), kernel)]
    labels = f"no{_RESULT[:rank]}"
    product = _convolved(call, pairs, 0, labels)
    if not call.has(2):
        return [product]
    return contract(call, [(product, labels), (call.tensor(2), "o")], [labels], all_linear)


def _convolution_backward(call: Call) -> list[Held]:
    """Grad, image, weight, bias sizes, ..., transposed, output padding, groups, mask.

    The results are the gradients of image, weight and bias.
    """
    _refuse_groups(call.args[9])
    grad, image, weight = (call.tensor(i) for i in range(3))
    call.localised.add(3)
    for rank, args in enumerate(call.local_args):
        if call.args[10][2] and list(args[3]) != [grad.dims[1][rank].size]:
            raise CheckError(f"rank {rank} has bias size {args[3]}")
    rank = len(image.shape) - 2
    of_grad = (grad, f"no{_RESULT[:rank]}")
    of_image = (image, f"nc{_IMAGE[:rank]}")
    of_weight = (weight, _kernel(call.args[7], rank))
    recipes = (([of_grad, of_weight], of_image[1]), ([of_grad, of_image], of_weight[1]),
               ([of_grad], "o"))  # fmt: skip
    return [
        _convolved(call, pairs, index, labels) if call.args[10][index] else call.results[index]
        for index, (pairs, labels) in enumerate(recipes)
    ]


def _pooled(call: Call) -> list[Held]:
    """Windows over whole images; batch and channels are free."""
    found = []
    for result in call.results:
        known = {
            label: whole_dim(size, call.mesh)
            for label, size in zip("YX", result.shape[-2:], strict=True)
        }
        pairs = [_flat(held, "ncyx", call.mesh) for held in call.tensors()]
        one = Call(call.op, call.args, call.local_args, [result], call.mesh)
        linear = first_linear if "backward" in call.op else no_partial
        found += contract(one, pairs, ["ncYX"], linear, known=known)
    return found


def _only(call: Call, index: int) -> Call:
    return Call(call.op, call.args, call.local_args, [call.results[index]], call.mesh)


def _layer_norm(call: Call) -> list[Held]:
    """Input, normalized shape, weight, bias, eps: output, mean, rstd."""
    held = call.tensor(0)
    labels = "abcdefgh"[: len(held.shape)]
    inner = labels[len(labels) - len(call.args[1]) :]
    pairs = [(held, labels), *((call.tensor(i), inner) for i in (2, 3) if call.has(i))]
    (output,) = contract(_only(call, 0), pairs, [labels], whole=inner)
    # mean and rstd keep the normalized dims with size 1
    ones = tuple(whole_dim(1, call.mesh) for _ in inner)
    dims = (*held.dims[: len(labels) - len(inner)], *ones)
    statistics = [Held(result.shape, dims, output.partial) for result in call.results[1:]]
    return [output, *statistics]


def _layer_norm_backward(call: Call) -> list[Held]:
    """Grad, input, normalized shape, mean, rstd, weight, bias, mask."""
    grad, held = call.tensor(0), call.tensor(1)
    labels = "abcdefgh"[: len(held.shape)]
    inner = labels[len(labels) - len(call.args[2]) :]
    pairs = [(grad, labels), (held, labels)]
    pairs += [(call.tensor(i), labels) for i in (3, 4)]
    weights = [(call.tensor(i), inner) for i in (5, 6) if call.has(i)]
    mask = call.args[7] if len(call.args) > 7 else [True] * 3
    found: list[Held] = []
    for index, result in enumerate(call.results):
        if not mask[index]:
            found.append(result)
        elif index == 0:
            found += contract(_only(call, 0), pairs + weights, [labels], first_linear, whole=inner)
        else:
            found += contract(_only(call, index), pairs, [inner], first_linear, whole=inner)
    return found


def _update(*written: int) -> Family:
    """Optimizer updates: elementwise over parameter, gradient and state of its shape."""

    def family(call: Call) -> list[Held]:
        labels = "abcdefgh"[: len(call.tensor(0).shape)]
        shape = call.tensor(0).shape
        pairs = [(h, labels if h.shape == shape else "") for h in call.tensors()]
        names = [labels if call.tensor(i).shape == shape else "" for i in written]
        found = []
        for index, name in enumerate(names):
            one = Call(call.op, call.args, call.local_args, [call.results[index]], call.mesh)
            relevant = pairs if name == labels else [(h, x) for h, x in pairs if x == ""]
            found += contract(one, relevant, [name])
        return found

    return family


def _dropout(call: Call) -> list[Held]:
    """Masks depend on global positions: whole, or the shard says exactly where it lies."""
    held = call.tensor(0)
    if call.op == "shardwright.dropout.default":
        if any(v != whole_dim(s, call.mesh) for v, s in zip(held.dims, held.shape, strict=True)):
            raise CheckError("draws the mask of a whole tensor on a shard")
    else:
        call.localised |= {4, 5, 6}
        for rank, args in enumerate(call.local_args):
            sizes = args[4]
            parts = [
                Lattice.whole(local).scaled(1, start)
                for local, start in zip(args[5], args[6], strict=True)
            ]
            said = Lattice.product(parts, sizes)
            own = [values[rank] for values in held.dims]
            if said != Lattice.product(own, held.shape):
                raise CheckError(f"rank {rank} draws the mask of another part")
    labels = "abcdefgh"[: len(held.shape)]
    return contract(call, [(held, labels)], [labels], first_linear)


_GRADIENT_POINTWISE = (
    "gelu_backward", "sigmoid_backward", "silu_backward", "tanh_backward", "threshold_backward",
)  # fmt: skip


def _masked_fill(call: Call) -> list[Held]:
    """Filling with zero is linear."""
    return pointwise(first_linear if call.args[2] == 0 else no_partial)(call)


def _argmax(call: Call) -> list[Held]:
    """Input, dim, keepdim: the dim is whole."""
    held = call.tensor(0)
    dim = call.args[1] % len(held.shape)
    if held.dims[dim] != whole_dim(held.shape[dim], call.mesh):
        raise CheckError("searches only a part")
    inner = Call(call.op, (held, [dim], *call.args[2:]), call.local_args, call.results, call.mesh)
    return reduction(no_partial, "max")(inner)


def _collect(call: Call) -> list[Held]:
    """Operand, dim, count: parts are whole, and so is what they make up."""
    held, dim, count = call.tensor(0), call.args[1], call.args[2]
    if any(held.partial) or any(
        values != whole_dim(size, call.mesh)
        for values, size in zip(held.dims, held.shape, strict=True)
    ):
        raise CheckError("joins parts that are not whole")
    shape = tuple(size * count if d == dim else size for d, size in enumerate(held.shape))
    dims = tuple(whole_dim(size, call.mesh) for size in shape)
    return [Held(shape, dims, held.partial)]


def _send(call: Call) -> list[Held]:
    """What is sent is complete; the result is empty."""
    if any(call.tensor(0).partial):
        raise CheckError("sends a value that is pending")
    return [Held((0,), (whole_dim(0, call.mesh),), call.tensor(0).partial)]


FAMILIES: dict[str, Family] = {
    "aten.masked_fill": _masked_fill,
    "aten.argmax": _argmax,
    "aten.argmin": _argmax,
    **{f"aten.{name}": pointwise(no_partial) for name in _PLAIN_POINTWISE},
    **{f"aten.{name}": pointwise(first_linear) for name in _GRADIENT_POINTWISE},
    "aten.add.Tensor": pointwise(all_linear),
    "aten.sub.Tensor": pointwise(all_linear),
    "aten.add.Scalar": pointwise(no_partial),
    "aten.sub.Scalar": pointwise(no_partial),
    "aten.mul.Tensor": pointwise(one_linear),
    "aten.mul.Scalar": pointwise(first_linear),
    "aten.div.Tensor": pointwise(first_linear),
    "aten.div.Scalar": pointwise(first_linear),
    "aten.neg": pointwise(first_linear),
    "aten._to_copy": pointwise(first_linear),
    "aten.clone": pointwise(first_linear),
    "aten.where.self": pointwise(choice),
    "aten.sum.dim_IntList": reduction(first_linear, "sum"),
    "aten.amax": reduction(no_partial, "max"),
    "aten.amin": reduction(no_partial, "min"),
    "aten._softmax": along(1),
    "aten._log_softmax": along(1),
    "aten._softmax_backward_data": along(2, first_linear),
    "aten._log_softmax_backward_data": along(2, first_linear),
    "aten.cumsum": along(1, first_linear),
    "aten.mm": products("mk", "kn", result="mn"),
    "aten.bmm": products("bmk", "bkn", result="bmn"),
    "aten.mv": products("mk", "k", result="m"),
    "aten.dot": products("k", "k", result=""),
    "aten.addmm": addmm,
    "aten.view": view,
    "aten._unsafe_view": view,
    "aten.reshape": view,
    "aten.permute": permute,
    "aten.expand": expand,
    "aten.full": constant(0),
    "aten.arange": _arange,
    "shardwright.arange_shard": _arange,
    "aten.slice.Tensor": take_slice,
    "aten.select.int": select,
    "aten.cat": cat,
    "aten.stack": stack,
    "aten.constant_pad_nd": pad,
    "aten.tril": matrices,
    "aten.triu": matrices,
    "aten.embedding": _embedding,
    "shardwright.embedding_shard": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    "shardwright.embedding_dense_backward_shard": _embedding_backward,
    "shardwright.sum_exp": _sum_exp,
    "shardwright.pick": _pick,
    "shardwright.softmax_minus_onehot": _softmax_minus_onehot,
    "shardwright.sdpa": _sdpa,
    "shardwright.sdpa_backward": _sdpa_backward,
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.max_pool2d_with_indices": _pooled,
    "aten.max_pool2d_with_indices_backward": _pooled,
    "aten.avg_pool2d": _pooled,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "shardwright.adam_update": _update(0, 2, 3, 4),
    "shardwright.adam_amsgrad_update": _update(0, 2, 3, 4, 5),
    "shardwright.adam_master_update": _update(0, 0, 2, 3),
    "shardwright.sgd_update": _update(0),
    "shardwright.sgd_momentum_update": _update(0, 2),
    "shardwright.accumulate": pointwise(first_linear),
    "shardwright.collect": _collect,
    "shardwright.send": _send,
    "shardwright.dropout": _dropout,
    "shardwright.dropout_shard": _dropout,
}


def family_of(op: str) -> Family | None:
    """Family of a qualified op name; overloads fall back to their packet's."""
    return FAMILIES.get(op) or FAMILIES.get(op.rpartition(".")[0])
