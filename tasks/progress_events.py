"""Tells Prefect that a run gets on, so that an automation (deployments/automations.yaml) can tell when it does not."""

import time

from prefect import runtime
from prefect.events import emit_event

from tasks.system.engine_child import Progress

PROGRESS_EVENT = "hero-run.progress"
EVENT_EVERY_SECONDS = 60.0
"""Kept by the server for a week: no more of them than the automation needs."""


class ProgressEvents:
    """Emits an event whenever work was done since the last one, and not more often than that is of use.

    Prefect sends events from a thread of its own, and drops them while the API is away.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._run = {
            "prefect.resource.id": f"prefect.flow-run.{runtime.flow_run.id}",
            "prefect.resource.name": str(runtime.flow_run.name),
        }
        self._told: tuple[str, float] | None = None
        self._told_at = -EVENT_EVERY_SECONDS

    def report(self, progress: Progress) -> None:
        """Say how far the stage is, unless that was said just now, or it is no further."""
        now, here = time.monotonic(), (progress.phase, progress.done)
        if here == self._told or now - self._told_at < EVENT_EVERY_SECONDS:
            return
        self._told, self._told_at = here, now
        payload = {"stage": self._stage, "phase": progress.phase, "done": progress.done, "total": progress.total}
        emit_event(PROGRESS_EVENT, resource=self._run, payload={**payload, "unit": progress.unit})
