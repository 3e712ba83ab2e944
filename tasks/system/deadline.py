"""When a run must be over, and how it gets there.

    wind down               inference sends nothing more, extraction begins no shard, no stage begins
    save                    training saves a checkpoint and stops
    drop                    inference gives up what is in flight
    end                     whatever is still at work is told to stop: SIGTERM for children, then SIGKILL
    the deadline            nothing is left

All times are POSIX seconds: clock changes and time zones are for whoever sets the deadline.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from tasks.system.processes import STOP

LONGEST_WIND_DOWN_SHARE = 0.2
"""Of the time from the start to the deadline: a short run is to work most of its time."""
SAVING_SECONDS = 120.0
"""What training gets for the step or the validation that it is in, and for its checkpoint."""
ENDING_SECONDS = 45.0
GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL."""
DROPPING_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""The system's clock may be set, so it is looked at, and never trusted for longer than this."""


@dataclass(frozen=True)
class Until:
    """POSIX times up to which a server may be asked."""

    send_seconds: float = math.inf
    """No request is sent later."""
    wait_seconds: float = math.inf
    """What has no answer by then gets none."""


FOR_EVER = Until()


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A run's deadline as the run itself keeps it."""

    at_seconds: float
    """POSIX time at which nothing of the run is at work any more."""
    wind_down_seconds: float
    """How long before that stages begin to wind down."""
    then: Literal["stop", "finish"] = "stop"
    """finish: it ends inference alone, and the run goes on with the answers that are there."""

    @property
    def wind_down_at_seconds(self) -> float:
        """When nothing new begins."""
        return self.at_seconds - self.wind_down_seconds

    @property
    def save_at_seconds(self) -> float:
        """When training saves and stops."""
        return self.at_seconds - min(SAVING_SECONDS, self.wind_down_seconds)

    @property
    def end_at_seconds(self) -> float:
        """When whatever is still at work is told to stop."""
        return self.at_seconds - self._ending_seconds

    @property
    def asking(self) -> Until:
        """What it leaves for the prompts; those in flight are dropped early enough for the server to end too."""
        drop_at_seconds = self.end_at_seconds - min(DROPPING_SECONDS, self._ending_seconds / 4)
        return Until(self.wind_down_at_seconds, drop_at_seconds)

    @property
    def grace_seconds(self) -> float:
        """What a child may take to end by itself, so that none is left at the deadline."""
        return min(GRACE_SECONDS, self._ending_seconds * 2 / 3)

    @property
    def _ending_seconds(self) -> float:
        return min(ENDING_SECONDS, self.wind_down_seconds / 2)

    @property
    def is_winding_down(self) -> bool:
        """Whether nothing new begins any more."""
        return time.time() >= self.wind_down_at_seconds

    @property
    def is_ending(self) -> bool:
        """Whether all work is told to stop."""
        return time.time() >= self.end_at_seconds

    @property
    def of_stages(self) -> "Deadline":
        """The deadline of all stages but inference: none, if the run is to finish with what it has."""
        return self if self.then == "stop" else NEVER


NEVER = Deadline(at_seconds=math.inf, wind_down_seconds=600.0)
"""The deadline of a run that has none."""


def wind_down_seconds(asked_seconds: float, whole_seconds: float) -> float:
    """How long before a deadline stages begin to wind down.

    Args:
        asked_seconds: For runs that are long enough.
        whole_seconds: From the start to the deadline.
    """
    return max(0.0, min(asked_seconds, LONGEST_WIND_DOWN_SHARE * whole_seconds))


@contextmanager
def kept(deadline: Deadline, end_children: Callable[[], None], say: Callable[[str], None]) -> Iterator[None]:
    """Keep a deadline, whatever the work is doing: tell it to stop, and then end its children over its head.

    Args:
        deadline: Of the run.
        end_children: Ends them at once.
        say: Gets a line when the winding down begins.
    """
    if deadline == NEVER:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_keep, args=(deadline, end_children, say, over), name="deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _keep(
    deadline: Deadline, end_children: Callable[[], None], say: Callable[[str], None], over: threading.Event
) -> None:
    if not _come(deadline.wind_down_at_seconds, over):
        return
    say(WINDING_DOWN[deadline.then])
    if deadline.then == "finish" or not _come(deadline.end_at_seconds, over):
        return
    STOP.set()
    left_seconds = deadline.at_seconds - deadline.end_at_seconds - deadline.grace_seconds
    if _come(deadline.end_at_seconds + left_seconds / 2, over):
        end_children()


WINDING_DOWN = {
    "stop": "the deadline is near: no stage begins any more, and the one at work winds down",
    "finish": "the deadline is near: no more prompts are asked, and the run goes on with the answers so far",
}


def _come(at_seconds: float, over: threading.Event) -> bool:
    """Wait for a time; False when the run is over before."""
    while (left_seconds := at_seconds - time.time()) > 0:
        if over.wait(min(left_seconds, LOOK_SECONDS)):
            return False
    return True
