"""Sharding rules of the user's own ops, beside those built in."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright import _core


@dataclass(frozen=True)
class UserRule:
    """One call of `register_rule`."""

    op: str
    notation: str
    linear: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[str, int], ...]


_USER_RULES: dict[str, UserRule] = {}


def register_rule(
    op: str,
    notation: str,
    *,
    linear: Sequence[Sequence[int]] = (),
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Tells the planner how an op may be sharded, in factor notation.

    A factor in an output is parallel there; one that is missing from an output is summed over, so
    the output of a rank is a part of the sum. Example, a batched product:

        sw.register_rule("mylib.matmul.default", "b m k, b k n -> b m n", linear=[[0], [1]])

    Args:
        op: qualified overload name, such as `"mylib.scale.default"`.
        notation: one name per dim, tensors parted by commas: operands in the order of the call,
            `->`, outputs. `1` is a dim of size 1 (or one that is broadcast), `n*` a factor that
            must not be sharded, `(h e)` a dim made of several factors, outer to inner. An empty
            part is a 0-d tensor.
        linear: sets of operands (counted from 0) such that the op is linear in each set, the other
            operands held fixed: pending sums may pass through there.
        sizes: sizes of factors that cannot be told from the shapes.

    A rule that does not fit the op raises `RuleError` [E202] when a step with the op is planned. A
    later call for the same op replaces an earlier one.
    """
    _USER_RULES[op] = UserRule(
        op,
        notation,
        tuple(tuple(operands) for operands in linear),
        tuple(sorted((sizes or {}).items())),
    )


def rule_registry() -> _core.RuleRegistry:
    """The built-in rules and those registered so far; the same object until there are more."""
    return _registry_with(tuple(_USER_RULES.values()))


@functools.lru_cache(maxsize=1)
def _registry_with(rules: tuple[UserRule, ...]) -> _core.RuleRegistry:
    registry = _core.RuleRegistry()
    for rule in rules:
        registry.add(
            rule.op, rule.notation, [list(operands) for operands in rule.linear], dict(rule.sizes)
        )
    return registry
