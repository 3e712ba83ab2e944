"""The plan in the Prefect UI: what was planned before the start, what is expected now, and what it really was."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.errors import HeroRunError
from tasks.planning import plan_run
from tasks.system import timings
from tasks.system.files import write_atomically
from tasks.system.plan.actual import Figures, figures_of, progress_rows
from tasks.system.plan.rows import layout_rows, stage_rows
from tasks.system.plan.whole import Plan
from tasks.system.run import Run


def publish_first(run: Run, plan: Plan) -> None:
    """The plan before anything is started."""
    description = f"What {run.recipe.name} is going to write under {run.data_root}, and how long it will take"
    artifacts.table("plan", stage_rows(plan), description)
    artifacts.table("plan-layouts", layout_rows(plan), f"Layouts of the hidden states. Taken: {plan.choice.reason}")


def keep_first(run: Run, plan: Plan) -> None:
    """Keep the plan, to be compared with what comes of it."""
    path = _plan_path(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({stage: vars(figure) for stage, figure in figures_of(plan).items()}, indent=1))


def publish_progress(run: Run) -> None:
    """Planned against actual, for every stage so far; what is left is planned anew with what has been measured."""
    planned = _read(_plan_path(run))
    if not planned:
        return
    try:
        left = figures_of(plan_run(run))
    except (HeroRunError, OSError) as error:  # a view of the work, never a reason to lose it
        get_run_logger().debug("the plan was not updated: %s", error)
        return
    actual: dict[str, Figures] = {}
    for timing in timings.read(run.data_root):
        if timing.run == run.name and timing.what == "stage":
            before = actual.get(timing.stage, Figures(0, 0.0))
            seconds = before.seconds + timing.seconds
            actual[timing.stage] = Figures(max(before.need_bytes, timing.written_bytes), seconds)
    prices = run.recipe.hardware.prices_per_hour_dollars
    artifacts.table("plan", progress_rows(planned, left, actual, prices), "Planned against actual, by stage")


def _plan_path(run: Run) -> Path:
    return run.data_root / timings.PLANS_FOLDER / f"{run.name}.json"


def _read(path: Path) -> Mapping[str, Figures]:
    try:
        kept: dict[str, dict[str, Any]] = json.loads(path.read_text())
        return {stage: Figures(**figures) for stage, figures in kept.items()}
    except (OSError, ValueError, TypeError):
        return {}
