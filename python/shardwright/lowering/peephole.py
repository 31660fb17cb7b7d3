"""Small rewrites of a rank's graph that save kernels and change no value beyond rounding."""

from __future__ import annotations

import torch
from torch import fx

_ATEN = torch.ops.aten


def fuse_bias_add(graph: fx.Graph) -> int:
    """Turns add(mm(x, w), bias) into addmm(bias, x, w) where the product has no other reader.

    Nodes must carry the index of their instruction in `meta["instruction"]`.

    Returns:
        How many were fused.
    """
    fused = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not _ATEN.add.Tensor or node.kwargs:
            continue
        product, bias = node.args
        if not _is_private_product(product):
            product, bias = bias, product
        if not _is_private_product(product) or not isinstance(bias, fx.Node):
            continue
        if not _is_vector(bias, product):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(_ATEN.addmm.default, (bias, *product.args))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(product)
        fused += 1
    return fused


def _is_private_product(node: object) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and node.target is _ATEN.mm.default
        and len(node.users) == 1
    )


def _is_vector(bias: fx.Node, product: fx.Node) -> bool:
    """Whether the bias is one value per column of the product."""
    shape, whole = bias.meta.get("local_shape"), product.meta.get("local_shape")
    same = bias.meta.get("local_dtype") == product.meta.get("local_dtype")
    return shape is not None and whole is not None and same and tuple(shape) == (whole[1],)
