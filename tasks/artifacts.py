"""Progress, tables and charts in the Prefect UI, never on the working thread's time."""

import base64
import contextvars
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging import get_run_logger

from tasks.progress_events import ProgressEvents
from tasks.system.engine_child import ETA_SECONDS, OnProgress, Progress

ARTIFACT_EVERY_SECONDS = 2.0
LOG_EVERY_SECONDS = 30.0


class _Publisher:
    """Publishes the latest report from a thread of its own, so that an API that is away blocks no work."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.started = time.monotonic()
        self.latest: Progress | None = None
        self.first: tuple[float, Progress] | None = None
        self.ended = threading.Event()
        self.artifact_id: UUID | None = None
        self.logger = get_run_logger()
        self.events = ProgressEvents(stage)

    def report(self, progress: Progress) -> None:
        if self.first is None or self.first[1].phase != progress.phase:
            self.first = (time.monotonic(), progress)
        self.latest = progress

    def loop(self) -> None:
        last_log, logged, published = 0.0, None, None
        while True:
            ending = self.ended.wait(ARTIFACT_EVERY_SECONDS)
            latest = self.latest
            due = ending or time.monotonic() - last_log > LOG_EVERY_SECONDS
            if latest is not None and latest is not logged and due:
                last_log, logged = time.monotonic(), latest
                self.logger.info(self.describe(latest))
            if latest is not None and latest is not published:
                published = latest
                self.publish(latest, self.describe(latest))
            if ending:
                return

    def publish(self, progress: Progress, text: str) -> None:
        percent = min(100.0, 100.0 * progress.done / progress.total) if progress.total else 0.0
        try:
            self.events.report(progress)
            if self.artifact_id is None:
                created: Any = create_progress_artifact(percent, key=f"{self.stage}-progress", description=text)
                self.artifact_id = created
            else:
                update_progress_artifact(self.artifact_id, progress=percent, description=text)
        except Exception as error:  # the UI is a view of the work, never a reason to lose it
            self.logger.debug("progress of %s was not published: %s", self.stage, error)

    def describe(self, progress: Progress) -> str:
        since, first = self.first or (time.monotonic(), progress)
        return describe(progress, progress.done - first.done, time.monotonic() - since)


def describe(progress: Progress, gained: float, seconds: float) -> str:
    """A report in words, with rate and ETA.

    Args:
        progress: The report.
        gained: What was done since the phase was first heard of.
        seconds: How long ago that was.
    """
    text = progress.phase
    if progress.total:
        share = 100 * progress.done / progress.total
        text += f": {progress.done:,.0f} of {progress.total:,.0f} {progress.unit} ({share:.0f} %)"
    elif progress.done:
        text += f": {progress.done:,.0f} {progress.unit}"
    if gained > 0 and seconds > 0:
        text += f", {readable_number(gained / seconds)} {progress.unit}/s"
        if progress.total > progress.done:
            eta = progress.figures.get(ETA_SECONDS, (progress.total - progress.done) * seconds / gained)
            text += f", ETA {readable_seconds(eta)}"
    known = {k: value for k, value in progress.figures.items() if value is not None and k != ETA_SECONDS}
    figures = ", ".join(f"{name.replace('_', ' ')} {readable_number(value)}" for name, value in known.items())
    return f"{text}; {figures}" if figures else text


@contextmanager
def progress_artifact(stage: str) -> Iterator[OnProgress]:
    """A progress bar for a stage: call what is yielded as often as you like."""
    publisher = _Publisher(stage)
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(publisher.loop), name=f"{stage}-progress", daemon=True)
    thread.start()
    try:
        yield publisher.report
    finally:
        publisher.ended.set()
        thread.join(timeout=10)


def table(key: str, rows: list[dict[str, Any]], description: str) -> None:
    """A table artifact; a failure to publish is logged, not raised."""
    _publish(create_table_artifact, table=rows, key=key, description=description)


def markdown(key: str, text: str, pictures: list[Path], description: str) -> None:
    """A markdown artifact with PNG files in it, as data URIs, which is what the UI shows."""
    for picture in pictures:
        data = base64.b64encode(picture.read_bytes()).decode()
        text += f"\n\n![{picture.stem}](data:image/png;base64,{data})"
    _publish(create_markdown_artifact, markdown=text, key=key, description=description)


def _publish(create: Any, **arguments: Any) -> None:
    try:
        create(**arguments)
    except Exception as error:  # as above
        get_run_logger().warning("artifact %s was not published: %s", arguments["key"], error)


def readable_number(value: float) -> str:
    """Three significant digits, and never an exponent for large numbers: 0.723, 12.3, 1,112."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def readable_seconds(seconds: float) -> str:
    """1 h 05 min, 3 min 20 s, 12 s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
