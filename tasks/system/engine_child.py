"""Runs a module of this project in the engine environment, from a typed spec to a typed result."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tasks.errors import ChildDied, HeroRunError, PermanentError
from tasks.recipe import from_json, to_json
from tasks.system.child import EXIT_PERMANENT, outcome_path, progress_path, read_outcome
from tasks.system.files import write_atomically
from tasks.system.processes import Child, Limits, wait_for_exit

Result = TypeVar("Result")


ETA_SECONDS = "eta_seconds"
"""A figure that says when a phase will end, where its pace so far would mislead."""


@dataclass(frozen=True)
class Progress:
    """One report: ``done`` of ``total`` ``unit`` in a phase, and further figures."""

    phase: str
    done: float
    total: float
    unit: str
    figures: dict[str, Any]


OnProgress = Callable[[Progress], None]


class ProgressFile:
    """Follows a child's progress file, whole lines only."""

    def __init__(self, path: Path, on_progress: OnProgress) -> None:
        self._path, self._on_progress, self._offset = path, on_progress, 0
        self._last: Progress | None = None

    def read_new(self) -> bool:
        """Hand on what was reported since the last call; whether there was anything."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as source:
            source.seek(self._offset)
            whole, newline, _ = source.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            report = json.loads(line)
            report.pop("time")
            phase, done, total, unit = (report.pop(key) for key in ("phase", "done", "total", "unit"))
            self._last = Progress(phase, done, total, unit, figures=report)
            self._on_progress(self._last)
        return bool(newline)

    def where(self) -> str:
        """How far the child had come, for messages."""
        last = self._last
        return f" in phase '{last.phase}', at {last.done:,.0f} of {last.total:,.0f} {last.unit}" if last else ""


def run_in_engine(
    python: Path,
    module: str,
    spec: Any,
    result_type: type[Result],
    work_folder: Path,
    on_progress: OnProgress,
    environment: Mapping[str, str],
    stall_timeout_seconds: float = 600.0,
    total_timeout_seconds: float = 48 * 3600.0,
    wind_down_at_seconds: float = math.inf,
    grace_seconds: float = 30.0,
) -> Result:
    """Run ``python -m module`` on a spec and return what it answered.

    Args:
        python: The engine environment's interpreter.
        module: A module with a ``child_main``.
        spec: Dataclass that the module takes.
        result_type: Dataclass that it answers with.
        work_folder: Gets the spec, the progress file, the outcome and the log, named by the module.
        on_progress: Called with every report, on this thread.
        environment: Further environment variables.
        stall_timeout_seconds: Longest time without a report.
        total_timeout_seconds: Longest time in all.
        wind_down_at_seconds: POSIX time after which the child is to begin nothing new.
        grace_seconds: Time between SIGTERM and SIGKILL when it is stopped.

    Raises:
        HeroRunError: The child's own error, or ``ChildDied`` with the log's tail when it left none.
    """
    work_folder.mkdir(parents=True, exist_ok=True)
    spec_path = work_folder / f"{module.rpartition('.')[2]}.json"
    for stale in (outcome_path(spec_path), progress_path(spec_path)):
        stale.unlink(missing_ok=True)
    write_atomically(spec_path, to_json(spec))
    log_path = spec_path.with_suffix(".log")
    command = [str(python), "-m", module, str(spec_path)]
    command += [] if math.isinf(wind_down_at_seconds) else [str(wind_down_at_seconds)]
    child = Child(command, log_path, environment, grace_seconds)
    reports = ProgressFile(progress_path(spec_path), on_progress)
    limits = Limits(stall_seconds=stall_timeout_seconds, total_seconds=total_timeout_seconds)
    try:
        ended = wait_for_exit(child, limits, reports.read_new)
    except ChildDied as error:
        raise ChildDied(f"{module}{reports.where()}: {error}") from error
    if not outcome_path(spec_path).exists():
        kind = PermanentError if ended.code == EXIT_PERMANENT else ChildDied
        raise kind(
            f"{module} ended with exit code {ended.code} and no outcome{reports.where()}. "
            f"Its log {log_path} ends:\n{ended.log_tail}"
        )
    try:
        return from_json(result_type, json.dumps(read_outcome(spec_path)))
    except HeroRunError as error:
        error.add_note(f"log: {log_path}")
        raise
