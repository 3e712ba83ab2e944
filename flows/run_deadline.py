"""The deadline of the flow run: the moment that it keeps, and the state that it ends in then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from prefect import runtime
from prefect.logging import get_run_logger
from prefect.states import Completed

from flows.deadline import AskedDeadline
from tasks.cut_short import DEADLINE_STATE, GOES_ON
from tasks.errors import DeadlineReached, Stopped
from tasks.recipe import Recipe, changed
from tasks.system.deadline import NEVER, Deadline, kept


def deadline_of_this_run(asked: AskedDeadline | None) -> Deadline:
    """The deadline of the flow run that is starting now.

    Raises:
        RecipeError: As in ``AskedDeadline.kept``.
    """
    if asked is None:
        return NEVER
    now = time.time()
    # A run that is tried again is due now, not when it was scheduled first.
    is_first_try = (runtime.flow_run.run_count or 1) == 1
    due = runtime.flow_run.scheduled_start_time.timestamp() if is_first_try else now
    deadline = asked.kept(now, min(now, due))
    get_run_logger().info("deadline: %s", _described(deadline))
    return deadline


def _described(deadline: Deadline) -> str:
    """A deadline in the machine's own time."""
    wind_down_at, at = (
        f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %Z}"
        for seconds in (deadline.wind_down_at_seconds, deadline.at_seconds)
    )
    if deadline.then == "finish":
        return f"{at}; no prompt is asked after {wind_down_at}, and the run goes on with the answers that are there"
    return f"{at}; from {wind_down_at} on nothing new begins"


@contextmanager
def keeping(deadline: Deadline, end_children: Callable[[], None]) -> Iterator[None]:
    """Keep the deadline as long as the run lasts; ``end_children`` ends them at once.

    Raises:
        DeadlineReached: It was here before the run began, or came between two stages; what a stage says goes through.
    """
    if deadline.of_stages.is_winding_down:
        raise DeadlineReached(f"its time was over before it began, {GOES_ON}")
    with kept(deadline, end_children, get_run_logger().info):
        try:
            yield
        except Stopped as stop:
            if isinstance(stop, DeadlineReached) or not deadline.of_stages.is_ending:
                raise
            raise DeadlineReached(f"between two stages, {GOES_ON}") from stop


def in_time(recipe: Recipe, deadline: Deadline) -> Recipe:
    """The recipe, its server's time of grace short enough for the server to be gone at the deadline."""
    if deadline.of_stages == NEVER:
        return recipe
    grace_seconds = min(recipe.server.stop_grace_seconds, deadline.grace_seconds)
    return changed(recipe, {"server": {"stop_grace_seconds": grace_seconds}})


def ended_at_deadline(reached: DeadlineReached) -> Any:
    """The state that the flow returns in the place of a product: who called the flow gets the state's data, a text."""
    return Completed(name=DEADLINE_STATE, message=str(reached), data=str(reached))
