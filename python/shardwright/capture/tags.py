"""Phase, module path and source line of every traced node.

While the step runs, the tags of the moment travel to each new node through torch.fx.traceback.
Backward nodes carry the sequence number of the forward node they differentiate, and take that
node's module path and source afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks

_KEY = "shardwright"


class Tags:
    """Tags of what is being traced now."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._path_of: dict[int, str] = {}
        for prefix, module in modules.items():
            for path, part in module.named_modules():
                full = ".".join(x for x in (prefix, path) if x)
                self._path_of.setdefault(id(part), full)
        self._stack: list[str] = []
        self._phase = ""
        self._source = ""
        self.num_backward = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Attaches tags to all nodes created inside."""
        enter = nn.modules.module.register_module_forward_pre_hook(self._enter)
        leave = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        saved = fx_traceback.current_meta
        with fx_traceback.preserve_node_meta():
            fx_traceback.current_meta = dict(saved)
            self._publish()
            try:
                yield
            finally:
                fx_traceback.current_meta = saved
                enter.remove()
                leave.remove()

    def set_source(self, source: str) -> bool:
        """Notes the user's line that runs now; returns whether it is known."""
        self._source = source or self._source
        self._publish()
        return bool(source)

    @contextmanager
    def backward(self, roots: Sequence[Tensor]) -> Iterator[None]:
        """Everything inside is backward of `roots`."""
        functions = [t.grad_fn for t in roots if t.grad_fn is not None]
        setup_stacktrace_preservation_hooks(functions)
        nested = self._phase == "backward"  # checkpointing runs a backward inside backward
        with self.phase("backward"):
            yield
        self.num_backward += not nested
        self._publish()

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Everything inside belongs to the phase."""
        saved, self._phase = self._phase, phase
        self._publish()
        try:
            yield
        finally:
            self._phase = saved
            self._publish()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        path = self._path_of.get(id(module))
        self._stack.append(path if path is not None else (self._stack[-1] if self._stack else ""))
        self._publish()

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._publish()

    def _publish(self) -> None:
        fx_traceback.current_meta["custom"] = {
            _KEY: (
                self._phase,
                self._stack[-1] if self._stack else "",
                self._source,
                self.num_backward,
                bool(self._stack) or torch.is_grad_enabled(),
            )
        }


def settle_tags(graph: fx.Graph, num_backward: int) -> None:
    """Turns the tags noted during tracing into phase, module_path and source of every node.

    A node outside of backward() and of optimizer.step() belongs to the update when it depends on
    gradients and no later backward() can start from it (clipping, for instance).
    """
    origin: dict[int, tuple[str, str]] = {}
    for node in graph.nodes:
        phase, path, source, _, _ = _noted(node)
        if phase != "backward" and "seq_nr" in node.meta:
            origin.setdefault(node.meta["seq_nr"], (path, source))
    for node in graph.nodes:
        phase, path, source, index, differentiable = _noted(node)
        if phase == "backward":
            found = origin.get(node.meta.get("seq_nr", -1))
            if found is not None and not path:
                path, source = found[0], found[1] or source
        elif phase == "":
            after = any(a.meta["phase"] != "forward" for a in node.all_input_nodes)
            updates = after and not (differentiable and index < num_backward)
            phase = "update" if updates else "forward"
        node.meta["phase"] = phase
        node.meta["module_path"] = path
        node.meta["source"] = source


def _noted(node: fx.Node) -> tuple[str, str, str, int, bool]:
    noted = (node.meta.get("custom") or {}).get(_KEY)
    return noted if noted is not None else ("", "", "", 0, True)


def copy_tags(source: fx.Node, target: fx.Node) -> None:
    """Gives a node made by a pass the tags of the node it replaces."""
    for key in ("phase", "module_path", "source"):
        target.meta[key] = source.meta.get(key, "")
