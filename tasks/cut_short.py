"""A stage that its run's deadline cuts short: how Prefect records that, and how the flow learns of it.

Not as a failure: the task run ends in a completed state of a name of its own, with how far the stage had come as
its message, and is not tried again. The flow then gets ``DeadlineReached`` in the place of a result, and ends in a
state of the same name.
"""

from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.states import Completed

from tasks.errors import DeadlineReached, Stopped
from tasks.system.run import Run

P = ParamSpec("P")
R = TypeVar("R")

DEADLINE_STATE = "Deadline"
"""Name of the state of a run, and of its last stage, that ended at the run's deadline."""
GOES_ON = "goes on at the next start"


class StageTask(Task[P, R]):
    """A task whose caller is told of a deadline by ``DeadlineReached``, unless it asks for the state."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        """Run the task; it takes and returns what Prefect's own tasks do."""
        outcome = super().__call__(*args, **kwargs)
        if not kwargs.get("return_state"):
            raise_if_cut_short(outcome)
        return outcome


def raise_if_cut_short(outcome: Any) -> None:
    """Raise ``DeadlineReached``, with the state's message, for the state of a stage that was cut short."""
    if isinstance(outcome, State) and outcome.name == DEADLINE_STATE:
        raise DeadlineReached(outcome.message or DEADLINE_STATE)


def require_time(run: Run, stage: str) -> None:
    """Raise ``DeadlineReached`` when it is too late for a stage to begin."""
    if run.deadline.of_stages.is_winding_down:
        raise DeadlineReached(f"{stage} not begun")


def state_of(run: Run, stage: str, stop: Stopped) -> State[None]:
    """The state of a stage that was told to stop.

    Raises:
        Stopped: By something else than the deadline.
    """
    if isinstance(stop, DeadlineReached):
        so_far = str(stop)
    elif run.deadline.of_stages.is_ending:
        so_far = f"{stage} not finished"
    else:
        raise stop
    return Completed(name=DEADLINE_STATE, message=f"{so_far}, {GOES_ON}")
