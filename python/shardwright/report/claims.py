"""What a plan's certificate says and, as important, what it does not say."""

from shardwright.plan import Plan
from shardwright.report.units import gap_text, shape_text, time_text

_STATUS = {
    "optimal": "Proven optimal: the cost equals the lower bound.",
    "feasible": "Not proven optimal: the search ended with a gap.",
    "time_limit": "Not proven optimal: the time limit ended the search.",
}


def certificate_lines(plan: Plan) -> list[str]:
    """Cost, bound, gap and status, then what they refer to; for text."""
    certificate = plan.certificate
    lines = [
        f"cost {time_text(certificate.cost_us)}, lower bound "
        f"{time_text(certificate.lower_bound_us)}, gap {gap_text(certificate.gap)}",
        status_claim(plan),
        scope_claim(plan),
    ]
    trials = () if plan.stats is None else plan.stats.trials
    if len(trials) > 1:
        lines.append("Mesh shapes tried:")
        lines += [f"  {_trial_text(*trial)}" for trial in trials]
    return lines


def status_claim(plan: Plan) -> str:
    """Whether the plan is proven optimal, and if not, why."""
    return _STATUS[plan.certificate.status]


def scope_claim(plan: Plan) -> str:
    """What "optimal" and the bound refer to."""
    claim = (
        f"The bound holds for all shardings of this step on mesh {shape_text(plan.mesh_shape)} "
        "within the memory, under this cluster's cost model"
    )
    if plan.stats is None:
        return f"{claim}."
    if len(plan.stats.trials) > 1:
        return f"{claim}; the other mesh shapes tried were no faster."
    return f"{claim}; no other mesh shape was tried."


def _trial_text(shape: tuple[int, ...], cost_us: float | None, status: str) -> str:
    if cost_us is None and status == "slower":
        return f"{shape_text(shape)}: bounded above the best plan"
    if cost_us is None:
        return f"{shape_text(shape)}: no plan found that fits"
    return f"{shape_text(shape)}: {time_text(cost_us)} ({status.replace('_', ' ')})"
