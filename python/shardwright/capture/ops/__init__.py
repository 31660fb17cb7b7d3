"""Ops of the `shardwright` namespace that capture puts into a StepGraph."""

from shardwright.capture.ops import attention, dropout, loss, microbatch, updates

__all__ = ["attention", "dropout", "loss", "microbatch", "updates"]
