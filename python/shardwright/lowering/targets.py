"""Which torch op an instruction calls.

An instruction either calls the op of its graph node or one of the few ops of the `shardwright`
namespace listed here. Names are looked up in this table only, never in torch's namespace.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import fx

from shardwright.errors import InternalError
from shardwright.lowering.table import Instruction

Target = torch._ops.OpOverload

# Overloads that replace a node's own op when it runs on shards, see csrc/sharding/rules.
_SHARDED_OPS = (
    "arange_shard",
    "dropout_shard",
    "embedding_shard",
    "embedding_dense_backward_shard",
)
_IN_PLACE_OPS = {
    "shardwright.adam_update.default": "adam_update_",
    "shardwright.adam_amsgrad_update.default": "adam_amsgrad_update_",
    "shardwright.adam_master_update.default": "adam_master_update_",
    "shardwright.sgd_update.default": "sgd_update_",
    "shardwright.sgd_momentum_update.default": "sgd_momentum_update_",
}


@cache
def _listed_targets() -> dict[str, Target]:
    namespace = torch.ops.shardwright
    found: dict[str, Target] = {"aten.reshape.default": torch.ops.aten.reshape.default}
    for name in _SHARDED_OPS:
        packet = getattr(namespace, name, None)
        if packet is not None:
            found[f"shardwright.{name}.default"] = packet.default
    return found


def find_target(instruction: Instruction, node: fx.Node) -> Target:
    """The overload that a compute instruction calls.

    Args:
        instruction: of kind "compute".
        node: the graph node it belongs to.

    Raises:
        InternalError: E941 when the instruction names an op that is neither the node's nor listed.
    """
    target = node.target
    if isinstance(target, Target) and str(target) == instruction.op:
        # A whole-graph view says nothing of strides; reshape copies where a local view cannot.
        return torch.ops.aten.reshape.default if _is_view(target) else target
    found = _listed_targets().get(instruction.op)
    if found is None:
        raise InternalError(
            "a program calls an op that its graph does not have",
            code="E941",
            values=[f"op {instruction.op}", f"graph node {node.name}: {target}"],
        )
    return found


def _is_view(target: Target) -> bool:
    return target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def in_place_target(op: str) -> Target | None:
    """The in-place form of an update op, None for other ops."""
    name = _IN_PLACE_OPS.get(op)
    if name is None:
        return None
    packet = getattr(torch.ops.shardwright, name)
    overload: Target = packet.default
    return overload
