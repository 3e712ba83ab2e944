"""What a child process and its supervisor say to each other: a spec in, progress and an outcome out.

A child is started as ``<python> -m <module> <spec.json> [<wind-down>]``. Beside the spec it leaves

- ``<spec>.progress.jsonl``: one line a report, ``{"time", "phase", "done", "total", "unit", ...}``;
- ``<spec>.outcome.json``: ``{"result": ...}`` or ``{"error": <class name>, "message": ...}``.

The exit code repeats the outcome's kind, for shells: 0 done, 65 permanent, 75 transient, 143 stopped.

It is stopped by SIGTERM, and then by SIGKILL. The wind-down is a POSIX time, after which it begins nothing that it
could not finish, leaves what it has, and ends by itself: known from the start, so that no signal has to find the one
process among vLLM's that may not be killed by it. It is no part of the spec, which says what is made.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tasks import errors
from tasks.recipe import from_json
from tasks.redaction import redact_log_records, redacted
from tasks.system.disk import full_disk
from tasks.system.files import write_atomically

EXIT_PERMANENT, EXIT_TRANSIENT, EXIT_STOPPED = 65, 75, 143

Spec = TypeVar("Spec")


def progress_path(spec_path: Path) -> Path:
    """Where a child reports its progress."""
    return spec_path.with_name(spec_path.name + ".progress.jsonl")


def outcome_path(spec_path: Path) -> Path:
    """Where a child leaves its result or its error."""
    return spec_path.with_name(spec_path.name + ".outcome.json")


class Reporter:
    """Writes a child's progress; also tells it that it was asked to stop, or is to wind down."""

    def __init__(self, path: Path, wind_down_at_seconds: float = math.inf) -> None:
        self._out = path.open("a", buffering=1)
        self._wind_down_at_seconds = wind_down_at_seconds
        self.stop_requested = False

    @property
    def is_winding_down(self) -> bool:
        """Whether nothing new is to begin."""
        return time.time() >= self._wind_down_at_seconds

    def progress(self, phase: str, done: float, total: float, unit: str, **figures: Any) -> None:
        """Report that ``done`` of ``total`` ``unit`` are finished in this phase.

        Args:
            phase: What is being done now, in a word or two.
            done: Finished amount.
            total: Whole amount; 0 when it is not known.
            unit: What is counted: tokens, steps, samples.
            **figures: Further numbers worth a curve (loss, rate).
        """
        line = {"time": time.time(), "phase": phase, "done": done, "total": total, "unit": unit, **figures}
        self._out.write(json.dumps(line) + "\n")


def child_main(spec_type: type[Spec], work: Callable[[Spec, Reporter], Any]) -> None:
    """Run a child: read the spec, do the work, leave the outcome, exit with its code.

    SIGTERM sets ``reporter.stop_requested``; the work saves what it has and raises ``Stopped``. Once
    ``reporter.is_winding_down``, work that takes long does so too, and raises ``DeadlineReached``.
    """
    redact_log_records()
    spec_path = Path(sys.argv[1])
    reporter = Reporter(progress_path(spec_path), *map(float, sys.argv[2:]))
    signal.signal(signal.SIGTERM, lambda *_: setattr(reporter, "stop_requested", True))
    # vLLM forks its engine from this process; with our handler the engine would ignore the signal.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    try:
        result = work(from_json(spec_type, spec_path.read_text()), reporter)
    except Exception as error:
        with contextlib.suppress(OSError):  # on a full volume the exit code must do
            print(redacted(traceback.format_exc()), file=sys.stderr, flush=True)
        if isinstance(error, OSError):
            error = full_disk(error, spec_path) or error
        with contextlib.suppress(OSError):
            _leave(spec_path, {"error": type(error).__name__, "message": redacted(str(error) or repr(error))})
        raise SystemExit(_exit_code(error)) from error
    _leave(spec_path, {"result": dataclasses.asdict(result)})


def _leave(spec_path: Path, outcome: dict[str, Any]) -> None:
    write_atomically(outcome_path(spec_path), json.dumps(outcome))


def _exit_code(error: Exception) -> int:
    if isinstance(error, errors.Stopped):
        return EXIT_STOPPED
    return EXIT_TRANSIENT if isinstance(error, errors.TransientError) else EXIT_PERMANENT


def read_outcome(spec_path: Path) -> Any:
    """The result that a child left.

    Raises:
        HeroRunError: The child's own error, as the class it named (``PermanentError`` for foreign ones).
        ChildDied: It left nothing.
    """
    path = outcome_path(spec_path)
    if not path.exists():
        raise errors.ChildDied(f"the child of {spec_path.name} ended without leaving an outcome at {path}.")
    outcome = json.loads(path.read_text())
    if "error" not in outcome:
        return outcome["result"]
    known = getattr(errors, outcome["error"], None)
    if known is None:
        raise errors.PermanentError(f"{outcome['error']}: {outcome['message']}")
    raise known(outcome["message"])
