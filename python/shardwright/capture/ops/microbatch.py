"""What leaves microbatches and stages: sums over microbatches, joined results, sent values.

All are marks in a graph. The runtime adds up, joins and sends (`shardwright.pipeline`); within one
microbatch the first two ops give their operand, and `send` gives an empty tensor.
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


def _send(x: Tensor) -> Tensor:
    return x.new_empty(0)


define_op("send(Tensor x) -> Tensor", _send, _send)
define_op("accumulate(Tensor(a) x) -> Tensor(a)", _accumulate, _accumulate)
define_op("collect(Tensor x, int dim, int count) -> Tensor", _collect, _collect_fake)
