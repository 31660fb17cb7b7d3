"""Phase, module path, source line and place in forward of every recorded node.

A backward node takes module path, source and `forward_index` of the forward node it
differentiates: autograd numbers its functions, and hooks say which function runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from shardwright.capture.batch_norm import STATISTICS_COUNT
from shardwright.layer_marks import ON_MARK

_NOTES = "notes"


class Tags:
    """Tags of what is being recorded now."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._path_of: dict[int, str] = {}
        for prefix, module in modules.items():
            for path, part in module.named_modules():
                full = ".".join(x for x in (prefix, path) if x)
                self._path_of.setdefault(id(part), full)
        self._stack: list[str] = []
        self._phase = ""
        self._source = ""
        self._origin: dict[int, tuple[str, str, int | None]] = {}
        self._function: int | None = None
        self.num_backward = 0
        self._num_forward = 0
        self._num_marks = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Follows which module runs."""
        enter = nn.modules.module.register_module_forward_pre_hook(self._enter)
        leave = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        token = ON_MARK.set(self._mark)
        try:
            yield
        finally:
            ON_MARK.reset(token)
            enter.remove()
            leave.remove()

    def attach(self, node: fx.Node) -> None:
        """Tags a new node; `settle` completes what only the whole graph can tell."""
        path = self._stack[-1] if self._stack else ""
        source = self._source
        index: int | None = None
        if self._phase == "backward":
            if self._function is not None:
                origin = self._origin.get(self._function, ("", source, None))
                path, source = (path, source) if path else origin[:2]
                index = origin[2]
        else:
            index = self._num_forward
            self._num_forward += 1
            node.meta["layer_marks"] = self._num_marks
        # In backward too: checkpointing computes forward again, and may run it back.
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        self._origin.setdefault(number, (path, source, index))
        node.meta["forward_index"] = index
        node.meta["phase"] = self._phase
        node.meta["module_path"] = path
        node.meta["source"] = source
        count = STATISTICS_COUNT.get()
        if count is not None:
            node.meta["batch_norm_count"] = count
        if not self._phase:
            differentiable = bool(self._stack) or torch.is_grad_enabled()
            node.meta[_NOTES] = (self.num_backward, differentiable)

    def set_source(self, source: str) -> None:
        """Notes the user's line that runs now, unless it is unknown."""
        self._source = source or self._source

    @contextmanager
    def backward(self, roots: Sequence[Tensor]) -> Iterator[None]:
        """Everything inside is backward of `roots`."""
        nested = self._phase == "backward"  # checkpointing runs a backward inside backward
        for function in _functions(roots):
            number = function._sequence_nr()
            function.register_prehook(lambda _, number=number: self._run(number))
            function.register_hook(lambda *_: self._run(None))
        with self.phase("backward"):
            yield
        self._function = None
        self.num_backward += not nested

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Everything inside belongs to the phase."""
        saved, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = saved

    def settle(self, graph: fx.Graph) -> None:
        """Decides the phase of nodes outside of backward() and of optimizer.step().

        Such a node belongs to the update when it depends on gradients and no later backward() can
        start from it (clipping, for instance).
        """
        for node in graph.nodes:
            notes = node.meta.pop(_NOTES, None)
            if notes is not None:
                index, differentiable = notes
                after = any(a.meta["phase"] != "forward" for a in node.all_input_nodes)
                updates = after and not (differentiable and index < self.num_backward)
                node.meta["phase"] = "update" if updates else "forward"
            elif "phase" not in node.meta:
                node.meta.update(phase="forward", module_path="", source="")

    def _mark(self) -> None:
        if self._phase != "backward":  # checkpointing runs forward again there
            self._num_marks += 1

    def _run(self, function: int | None) -> None:
        self._function = function

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        path = self._path_of.get(id(module))
        self._stack.append(path if path is not None else (self._stack[-1] if self._stack else ""))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()


def _functions(roots: Sequence[Tensor]) -> Iterator[Any]:
    """Every autograd function from which the roots were made."""
    queue = deque(t.grad_fn for t in roots if t.grad_fn is not None)
    seen = set(queue)
    while queue:
        function = queue.popleft()
        yield function
        for following, _ in function.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)


def copy_tags(source: fx.Node, target: fx.Node) -> None:
    """Gives a node made by a pass the tags of the node it replaces."""
    for key in ("phase", "module_path", "source"):
        target.meta[key] = source.meta.get(key, "")
    for key in ("batch_norm_count", "forward_index", "layer_marks"):
        if key in source.meta:
            target.meta[key] = source.meta[key]
