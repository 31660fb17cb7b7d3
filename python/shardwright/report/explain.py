"""Why an input lies as it does: what the step would cost with each other sharding of it.

Each alternative is forced and the whole step is searched again on the same mesh, so that everything
else may adapt to it: the numbers are those of real, certified plans.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from html import escape

from shardwright import _core
from shardwright.errors import ConfigError, InfeasibleError
from shardwright.plan import Plan, PlanOrigin
from shardwright.report.units import bytes_text, time_text

_MAX_NAMES = 8


@dataclass(frozen=True)
class Alternative:
    """One other sharding of the input.

    Attributes:
        text: The spec as printed.
        cost_us: Time of one step of the best plan found with it; None when there is none.
        lower_bound_us: No plan with it is faster, as far as proven; None when nothing fits.
        peak_memory_bytes: Of that plan; None when there is none.
        status: "optimal", "feasible" or "time_limit" for that plan; "none found that fits" the
            memory; "not tried" when time ran out.
    """

    text: str
    cost_us: float | None
    lower_bound_us: float | None
    peak_memory_bytes: int | None
    status: str


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why an input is sharded as it is; prints as text, shows as a table in notebooks.

    Attributes:
        name: Unsharded name of the input.
        shape: Its global shape.
        chosen: The plan's spec for it.
        cost_us: Time of one step of the plan.
        peak_memory_bytes: Peak of the plan.
        alternatives: The other specs, fastest first.
    """

    name: str
    shape: tuple[int, ...]
    chosen: str
    cost_us: float
    peak_memory_bytes: int
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        width = max(len(row[0]) for row in self._rows())
        lines = [f"{self.name} {list(self.shape)} is stored as {self.chosen}. {self._verdict()}"]
        lines += [
            f"  {text:<{width}}  {cost:>10}  {change:>9}  {peak:>10}  {status}"
            for text, cost, change, peak, status in self._rows()
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = (
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows()
        )
        heads = ("stored as", "time per step", "change", "peak memory", "status")
        head = "".join(f"<th>{head}</th>" for head in heads)
        return (
            f"<p><b>{escape(self.name)}</b> {escape(str(list(self.shape)))} is stored as "
            f"<code>{escape(self.chosen)}</code>. {escape(self._verdict())}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(cells)}</tbody></table>"
        )

    def _verdict(self) -> str:
        tried = [a for a in self.alternatives if a.cost_us is not None]
        faster = [a for a in tried if a.cost_us is not None and a.cost_us < self.cost_us]
        if faster:
            return f"A faster plan was found with {faster[0].text}, for the plan is not proven."
        ties = [a.text for a in tried if a.cost_us == self.cost_us]
        if ties:
            return f"Just as fast: {', '.join(ties)}."
        if tried:
            assert tried[0].cost_us is not None
            more = _change_text(tried[0].cost_us, self.cost_us).removeprefix("+")
            return f"The next best found, {tried[0].text}, costs {more} more."
        return "With no other spec a plan was found."

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        chosen = (
            self.chosen, time_text(self.cost_us), "", bytes_text(self.peak_memory_bytes), "chosen",
        )  # fmt: skip
        rows = [chosen]
        for other in self.alternatives:
            if other.cost_us is None or other.peak_memory_bytes is None:
                rows.append((other.text, "-", "", "-", other.status.replace("_", " ")))
                continue
            rows.append(
                (
                    other.text,
                    time_text(other.cost_us),
                    _change_text(other.cost_us, self.cost_us),
                    bytes_text(other.peak_memory_bytes),
                    self._status_text(other),
                )
            )
        return rows

    def _status_text(self, other: Alternative) -> str:
        """Whether the plan is proven, or at least that no plan with the spec beats the chosen."""
        status = other.status.replace("_", " ")
        slower = other.lower_bound_us is not None and other.lower_bound_us > self.cost_us
        return f"{status}, proven slower" if slower and status != "optimal" else status


def _change_text(cost_us: float, reference_us: float) -> str:
    if cost_us == reference_us or not reference_us:
        return "+0 %"
    return f"{100 * (cost_us / reference_us - 1):+.2g} %"


def explain(plan: Plan, name: str, *, time_limit_s: float = 60.0) -> Explanation:
    """Forces every other spec of one input, one after the other, and searches again.

    Args:
        plan: A plan made in this process.
        name: Unsharded name of a parameter, buffer, optimizer state or batch leaf.
        time_limit_s: Seconds for all searches together; specs that are left are "not tried".

    Returns:
        The plan's spec and what each alternative would cost.

    Raises:
        ConfigError: E541 for a plan that was loaded from a file, E542 for a name the step does not
            have.
    """
    if plan.origin is None:
        raise ConfigError(
            "a plan that was loaded from a file cannot be explained.",
            code="E541",
            values=["costs of alternatives need the step, which the file does not hold"],
            advice="plan the step with shardwright.plan and explain that plan",
        )
    if name not in plan.inputs:
        raise unknown_name(name, plan.inputs)
    origin, chosen = plan.origin, plan.inputs[name].text
    deadline = time.monotonic() + time_limit_s
    texts = [text for text in _specs(plan, origin, name) if text != chosen]
    alternatives = []
    for index, text in enumerate(texts):
        # Each search gets an equal part of what is left.
        left = (deadline - time.monotonic()) / (len(texts) - index)
        if left <= 0:
            alternatives.append(Alternative(text, None, None, None, "not tried"))
        else:
            alternatives.append(_with_forced(plan, origin, name, text, left))
    alternatives.sort(key=lambda a: (a.cost_us is None, a.cost_us or 0.0, a.text))
    return Explanation(
        name=name,
        shape=plan.inputs[name].shape,
        chosen=chosen,
        cost_us=plan.time_us,
        peak_memory_bytes=plan.peak_memory_bytes,
        alternatives=tuple(alternatives),
    )


def unknown_name(name: str, inputs: Collection[str]) -> ConfigError:
    """The error for a name that no input of the step has."""
    return ConfigError(
        f"the step has no input {name!r}.",
        code="E542",
        values=[f"inputs: {_some_names(inputs, name)}"],
        advice="one of plan.inputs",
    )


def _some_names(inputs: Collection[str], wanted: str) -> str:
    """Names that end alike first."""
    last = wanted.rpartition(".")[2]
    names = sorted(inputs, key=lambda name: (not name.endswith(last), name))
    tail = ", ..." if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + tail


def _specs(plan: Plan, origin: PlanOrigin, name: str) -> list[str]:
    """All specs the planner can give the input, as printed."""
    nodes = _core.describe_nodes(origin.graph)
    index = next(i for i, node in enumerate(nodes) if node["input_name"] == name)
    atoms = origin.graph.atoms(_core.ValueRef(index, 0))
    strategies = origin.graph.strategies(index, list(plan.mesh_shape))
    return [_core.print_spec(atoms, strategy["outputs"][0]) for strategy in strategies]


def _with_forced(
    plan: Plan, origin: PlanOrigin, name: str, text: str, time_limit_s: float
) -> Alternative:
    try:
        result = _core.plan_step(
            origin.graph,
            plan.cluster.to_core(),
            mesh_shape=list(plan.mesh_shape),
            memory_limit_bytes=origin.memory_limit_bytes,
            forced={**origin.forced, name: text},
            num_microbatches=plan.num_microbatches,
            microbatches_in_flight=plan.microbatches_in_flight,
            time_limit_s=time_limit_s,
            shard_all_products=origin.shard_all_products,
            graph_hash=plan.graph_hash,
        )
    except InfeasibleError:
        return Alternative(text, None, None, None, "none found that fits")
    certificate = result.plan.certificate
    return Alternative(
        text,
        certificate.cost_us,
        certificate.lower_bound_us,
        certificate.peak_memory_bytes,
        certificate.status,
    )
