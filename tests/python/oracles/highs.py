"""A problem of the contest's format as a 0-1 program for HiGHS, the second oracle of the solver."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from tests.python.oracles.random_contest import FORBIDDEN, Problem, rows_of


@dataclass(frozen=True)
class HighsAnswer:
    """Cost is None when no choice exists; proven when HiGHS closed the gap in its time."""

    cost: int | None
    proven: bool


class _Rows:
    def __init__(self) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.starts: list[int] = [0]
        self.columns: list[int] = []
        self.values: list[float] = []

    def add(self, lower: float, upper: float, entries: list[tuple[int, float]]) -> None:
        self.lower.append(lower)
        self.upper.append(upper)
        self.columns += [column for column, _ in entries]
        self.values += [value for _, value in entries]
        self.starts.append(len(self.columns))


def solve_with_highs(problem: Problem, *, time_limit_s: float) -> HighsAnswer:
    """One-hot columns per node, one column per allowed pair of an edge, marginals as equalities."""
    nodes, edges = problem["nodes"], problem["edges"]
    objective: list[float] = []
    upper: list[float] = []
    column_of: dict[tuple[int, int], int] = {}
    for i, row in enumerate(nodes["costs"]):
        for s, cost in enumerate(row):
            column_of[i, s] = len(objective)
            objective.append(0.0 if cost >= FORBIDDEN else float(cost))
            upper.append(0.0 if cost >= FORBIDDEN else 1.0)
    num_binary = len(objective)
    rows = _Rows()
    for i, row in enumerate(nodes["costs"]):
        rows.add(1.0, 1.0, [(column_of[i, s], 1.0) for s in range(len(row))])
    for (u, v), table in zip(edges["nodes"], edges["costs"], strict=True):
        num_rows, num_cols = len(nodes["costs"][u]), len(nodes["costs"][v])
        of_row: list[list[tuple[int, float]]] = [[] for _ in range(num_rows)]
        of_col: list[list[tuple[int, float]]] = [[] for _ in range(num_cols)]
        for a in range(num_rows):
            for b in range(num_cols):
                cost = table[a * num_cols + b]
                if cost >= FORBIDDEN:
                    continue
                of_row[a].append((len(objective), 1.0))
                of_col[b].append((len(objective), 1.0))
                objective.append(float(cost))
                upper.append(1.0)
        for a, entries in enumerate(of_row):
            rows.add(0.0, 0.0, [*entries, (column_of[u, a], -1.0)])
        for b, entries in enumerate(of_col):
            rows.add(0.0, 0.0, [*entries, (column_of[v, b], -1.0)])
    if "usage_limit" in problem:
        for alive in rows_of(problem):
            entries = [
                (column_of[i, s], float(held))
                for i in alive
                for s, held in enumerate(nodes["usages"][i])
            ]
            rows.add(-np.inf, float(problem["usage_limit"]), entries)

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(objective), len(rows.lower)
    lp.col_cost_ = np.array(objective)
    lp.col_lower_ = np.zeros(len(objective))
    lp.col_upper_ = np.array(upper)
    lp.row_lower_, lp.row_upper_ = np.array(rows.lower), np.array(rows.upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(rows.starts)
    lp.a_matrix_.index_ = np.array(rows.columns)
    lp.a_matrix_.value_ = np.array(rows.values)
    integer, continuous = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [integer if c < num_binary else continuous for c in range(len(objective))]

    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", time_limit_s)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.5)  # costs are integers
    highs.passModel(lp)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return HighsAnswer(None, proven=True)
    proven = status == highspy.HighsModelStatus.kOptimal
    if not proven and not np.isfinite(highs.getInfo().objective_function_value):
        return HighsAnswer(None, proven=False)
    # Price the choice itself: the program's objective carries tolerances.
    values = np.array(highs.getSolution().col_value)
    choice = [
        int(np.argmax([values[column_of[i, s]] for s in range(len(row))]))
        for i, row in enumerate(nodes["costs"])
    ]
    cost = sum(row[choice[i]] for i, row in enumerate(nodes["costs"]))
    for (u, v), table in zip(edges["nodes"], edges["costs"], strict=True):
        cost += table[choice[u] * len(nodes["costs"][v]) + choice[v]]
    return HighsAnswer(cost, proven)
