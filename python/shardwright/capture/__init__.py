"""Capture: a training step becomes one functional, labelled ATen graph (StepGraph)."""

from shardwright.capture.arguments import StepArguments, sort_arguments
from shardwright.capture.binding import initial_state, read_inputs, write_updates
from shardwright.capture.capture import capture
from shardwright.capture.signature import signature
from shardwright.capture.step_graph import (
    InputSpec,
    OutputSpec,
    ResultSlot,
    ResultTree,
    StateInit,
    StepGraph,
)

__all__ = [
    "InputSpec",
    "OutputSpec",
    "ResultSlot",
    "ResultTree",
    "StateInit",
    "StepArguments",
    "StepGraph",
    "capture",
    "initial_state",
    "read_inputs",
    "signature",
    "sort_arguments",
    "write_updates",
]
