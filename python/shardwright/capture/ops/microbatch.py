"""What leaves the microbatches of a step: sums over them, and results joined from their parts.

Both are marks in a graph. The runtime adds up and joins (`shardwright.pipeline`); within one
microbatch the ops give their operand.
"""

from __future__ import annotations

from torch import Tensor

from shardwright.capture.ops.library import define_op


def _accumulate(x: Tensor) -> Tensor:
    return x


def _collect(x: Tensor, dim: int, count: int) -> Tensor:
    return x.clone()


def _collect_fake(x: Tensor, dim: int, count: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] *= count
    return x.new_empty(shape)


define_op("accumulate(Tensor(a) x) -> Tensor(a)", _accumulate, _accumulate)
define_op("collect(Tensor x, int dim, int count) -> Tensor", _collect, _collect_fake)
