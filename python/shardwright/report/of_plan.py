"""Reports of a plan of either kind."""

from __future__ import annotations

from typing import Any

from shardwright.pipeline.plan import PipelinePlan
from shardwright.plan import Plan
from shardwright.report.html import html_page
from shardwright.report.numbers import pipeline_numbers, plan_numbers
from shardwright.report.pipeline_html import pipeline_page
from shardwright.report.pipeline_text import pipeline_text_report
from shardwright.report.text import text_report

AnyPlan = Plan | PipelinePlan


def report_text(plan: AnyPlan, *, width: int, color: bool) -> str:
    """Lines for a terminal."""
    if isinstance(plan, PipelinePlan):
        return pipeline_text_report(plan, width=width, color=color)
    return text_report(plan, width=width, color=color)


def report_page(plan: AnyPlan) -> str:
    """A web page."""
    return pipeline_page(plan) if isinstance(plan, PipelinePlan) else html_page(plan)


def report_numbers(plan: AnyPlan) -> dict[str, Any]:
    """The figures for programs."""
    return pipeline_numbers(plan) if isinstance(plan, PipelinePlan) else plan_numbers(plan)
