"""Progress of loops that are not training steps: reported at most once a second, and left when asked to stop."""

import time
from collections.abc import Callable

from tasks.errors import Stopped
from tasks.system.child import Reporter

REPORT_EVERY_SECONDS = 1.0


def watched(reporter: Reporter, phase: str, unit: str, stoppable: bool = True) -> Callable[[int, int], None]:
    """A callback for a loop.

    Args:
        reporter: Where progress goes.
        phase: What the loop does.
        unit: What it counts.
        stoppable: Whether the loop may be left: nothing that it did is worth saving.

    Returns:
        A function of the amount done and the whole amount; it raises ``Stopped`` when a stop was asked for.
    """
    reported_at = -REPORT_EVERY_SECONDS

    def progress(done: int, total: int) -> None:
        nonlocal reported_at
        if stoppable and reporter.stop_requested:
            raise Stopped(f"stopped while {phase}, after {done} of {total} {unit}; nothing was lost.")
        if time.monotonic() - reported_at >= REPORT_EVERY_SECONDS:
            reporter.progress(phase, done, total, unit)
            reported_at = time.monotonic()

    return progress
