"""Names of layers, for people: "embedding, layers.0-11"."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardwright.capture.step_graph import StepGraph

_LAYER = re.compile(r"((?:[^.]+\.)*?)(\d+)(?=\.|$)")


def module_names(paths: Iterable[str]) -> str:
    """Outermost numbered modules and what stands beside them, in order, runs of numbers joined.

    Example: "embedding", "layers.0.mlp.up", "layers.1.norm", "head" give
    "embedding, layers.0-1, head".
    """
    names: list[tuple[str, int, int]] = []  # list, first, last; (name, -1, -1) beside lists
    for path in paths:
        match = _LAYER.match(path)
        if match:
            prefix, number = match[1], int(match[2])
            known = next((i for i, name in enumerate(names) if name[0] == prefix), None)
            if known is None:
                names.append((prefix, number, number))
            else:
                first, last = names[known][1:]
                names[known] = (prefix, min(first, number), max(last, number))
        elif path and (path.partition(".")[0], -1, -1) not in names:
            names.append((path.partition(".")[0], -1, -1))
    texts = []
    for name, first, last in names:
        numbers = "" if first < 0 else str(first) if first == last else f"{first}-{last}"
        texts.append(f"{name}{numbers}")
    return ", ".join(texts)


def layer_names(graph: StepGraph) -> str:
    """Modules whose forward a stage's graph runs."""
    return module_names(
        node.meta.get("module_path") or ""
        for node in graph.graph_module.graph.nodes
        if node.op == "call_function" and node.meta.get("phase") == "forward"
    )
