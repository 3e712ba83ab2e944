"""Progress of loops that are not training steps: reported at most once a second, and left when asked to stop."""

import time
from collections.abc import Callable

from tasks.errors import Stopped
from tasks.system.child import Reporter

REPORT_EVERY_SECONDS = 1.0


def watched(reporter: Reporter, phase: str, unit: str) -> Callable[[int, int], None]:
    """A callback for a loop that has nothing to save.

    Args:
        reporter: Where progress goes.
        phase: What the loop does.
        unit: What it counts.

    Returns:
        A function of the amount done and the whole amount; it raises ``Stopped`` when a stop was asked for.
    """
    reported_at = -REPORT_EVERY_SECONDS

    def progress(done: int, total: int) -> None:
        nonlocal reported_at
        if reporter.stop_requested:
            raise Stopped(f"stopped while {phase}, after {done} of {total} {unit}; nothing was lost.")
        if time.monotonic() - reported_at >= REPORT_EVERY_SECONDS:
            reporter.progress(phase, done, total, unit)
            reported_at = time.monotonic()

    return progress
