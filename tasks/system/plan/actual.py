"""Planned against actual, by stage."""

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.system.plan.needs import STAGES
from tasks.system.plan.units import decimal_bytes, dollars, readable_hours
from tasks.system.plan.whole import Plan

Row = dict[str, str]


@dataclass(frozen=True)
class Figures:
    """Of one stage: what it writes and how long it takes."""

    need_bytes: int
    seconds: float


def figures_of(plan: Plan) -> dict[str, Figures]:
    """By stage, what a plan says; finished stages are not in it."""
    figures = {}
    for stage in STAGES:
        needs = [need.need_bytes for need in plan.needs if need.stage == stage]
        lines = [line.seconds for line in plan.hours if line.stage == stage]
        if needs or lines:
            figures[stage] = Figures(sum(needs), sum(lines))
    return figures


def progress_rows(
    planned: Mapping[str, Figures], left: Mapping[str, Figures], actual: Mapping[str, Figures], prices: list[float]
) -> list[Row]:
    """One row a stage and one for all.

    Args:
        planned: Before the start.
        left: What the unfinished stages are expected to take now.
        actual: What the stages have taken so far, all tries together.
        prices: Of the machine, dollars an hour.
    """
    rows = []
    nothing = Figures(0, 0.0)
    for stage in STAGES:
        if stage in planned or stage in actual:
            expected = left.get(stage) if stage in planned else None
            rows.append(_row(stage, planned.get(stage), expected, actual.get(stage)))
    total = [sum(f.seconds for f in figures.values()) for figures in (planned, left, actual)]
    whole = _row("all", _sum(planned), _sum(left) if left else None, _sum(actual) if actual else nothing)
    if prices:
        costs = [(total[1] + total[2]) / 3600 * price for price in prices]
        whole["actual hours"] += f"; {dollars(costs)} in all"
    return [*rows, whole]


def _sum(figures: Mapping[str, Figures]) -> Figures:
    return Figures(sum(f.need_bytes for f in figures.values()), sum(f.seconds for f in figures.values()))


def _row(stage: str, planned: Figures | None, left: Figures | None, actual: Figures | None) -> Row:
    return {
        "stage": stage,
        "planned bytes": decimal_bytes(planned.need_bytes) if planned else "-",
        "written bytes": decimal_bytes(actual.need_bytes) if actual and actual.need_bytes else "-",
        "planned hours": readable_hours(planned.seconds) if planned and planned.seconds else "-",
        "actual hours": readable_hours(actual.seconds) if actual else "-",
        "expected to go": readable_hours(left.seconds) if left and left.seconds else "-",
    }
