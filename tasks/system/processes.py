"""Child processes that die with the flow, however it dies; and the run's stop signal."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import ChildDied, Stopped
from tasks.redaction import redacted
from tasks.system import guard
from tasks.system.orphans import KILL_WAIT_SECONDS, RECORD_SUFFIX, end_recorded, still_there

POLL_SECONDS = 0.2
LOG_LIMIT_BYTES = 64_000_000
"""A child's log is moved to ``<log>.1`` when it grows beyond this."""

STOP = threading.Event()
"""Set when the run ends for any reason. Work on other threads, which nothing can interrupt, looks at it."""

_live: dict[int, "Child"] = {}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a child may take."""

    stall_seconds: float
    """Longest time without progress."""
    total_seconds: float
    """Longest time in all."""


@dataclass(frozen=True)
class Exit:
    """How a child ended."""

    code: int
    log_tail: str


class Child:
    """One command under a guard process (see ``tasks.system.guard``), its output in a log file."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        grace_seconds: float = 10.0,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        """Start the command.

        Args:
            command: Program and arguments.
            log_path: Gets stdout and stderr; a file, so that no pipe can block the child.
            environment: Set on top of this process's own.
            grace_seconds: Time between SIGTERM and SIGKILL when it is stopped.
            log_limit_bytes: Size at which the log is moved aside.
        """
        self.command, self.log_path, self.grace_seconds = list(command), log_path, grace_seconds
        log_path.parent.mkdir(parents=True, exist_ok=True)
        # Both ends are close-on-exec; only the read end is passed on, and only to the guard.
        read_end, self._write_end = os.pipe()
        self._record = log_path.with_name(log_path.name + RECORD_SUFFIX)
        settings = {"pipe": read_end, "grace_seconds": grace_seconds, "record": str(self._record)}
        settings |= {"log": str(log_path), "log_limit_bytes": log_limit_bytes}
        with log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, guard.__file__, json.dumps(settings), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=[read_end],
                start_new_session=True,
            )
        os.close(read_end)
        self._open = True
        self._closing = threading.Lock()  # the run's end and its deadline may come at once, on two threads
        _live[self.pid] = self

    @property
    def pid(self) -> int:
        """The guard's process id: it lives as long as anything of the command does."""
        return self._guard.pid

    @property
    def exit(self) -> Exit | None:
        """How the child ended, or None while anything of it is alive."""
        code = self._guard.poll()
        if code is None:
            return None
        self._close()
        self._end_what_a_killed_guard_left()
        return Exit(code, log_tail(self.log_path))

    def stop(self) -> None:
        """End the command and everything that it started.

        Raises:
            PermanentError: Something is still there after SIGKILL; the message names the processes.
        """
        self._close()
        try:
            self._guard.wait(self.grace_seconds + KILL_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise still_there(guard.descendants(self.pid), self.command) from None
        self._end_what_a_killed_guard_left()

    def _end_what_a_killed_guard_left(self) -> None:
        # The guard removes its record as the last thing it does, so a record that is left means that it was killed.
        with self._closing:
            if self._record.exists():
                end_recorded(self._record)

    def tell_to_end(self) -> None:
        """Begin to end the command and everything that it started, without waiting for it."""
        with self._closing:
            if self._open:
                self._open = False
                os.close(self._write_end)

    def _close(self) -> None:
        self.tell_to_end()
        _live.pop(self.pid, None)


@contextmanager
def all_children_end() -> Iterator[Callable[[], None]]:
    """On every way out, tell all work to stop and end every child that was started meanwhile.

    Yields what does the same at once, from any thread.
    """
    STOP.clear()
    before = set(_live)

    def end() -> None:
        STOP.set()
        children = [child for pid, child in list(_live.items()) if pid not in before]
        for child in children:
            child.tell_to_end()  # so that their times of grace run side by side
        for child in children:
            child.stop()

    try:
        yield end
    finally:
        end()


def raise_if_stopping() -> None:
    """Raise ``Stopped`` when the run is ending."""
    if STOP.is_set():
        raise Stopped("the run is being stopped; what is finished stays on disk and is used by the next start.")


def wait_for_exit(child: Child, limits: Limits, progressed: Callable[[], bool]) -> Exit:
    """Wait until a child ends by itself.

    Args:
        child: The child; it is stopped on every other way out.
        limits: How long it may take.
        progressed: Called a few times a second; says whether there was progress since the last call.

    Raises:
        ChildDied: No progress for too long, or not done in time.
        Stopped: The run is ending.
    """
    started = last_progress = time.monotonic()
    try:
        while (ended := child.exit) is None:
            raise_if_stopping()
            if progressed():
                last_progress = time.monotonic()
            _raise_if_over(child, limits, time.monotonic() - started, time.monotonic() - last_progress)
            time.sleep(POLL_SECONDS)
        progressed()
        return ended
    finally:
        child.stop()


def _raise_if_over(child: Child, limits: Limits, total_seconds: float, quiet_seconds: float) -> None:
    if quiet_seconds > limits.stall_seconds:
        why = f"no progress for {limits.stall_seconds:.0f} s"
    elif total_seconds > limits.total_seconds:
        why = f"not done after {limits.total_seconds:.0f} s"
    else:
        return
    raise ChildDied(f"{why}, so the child was ended. Its log {child.log_path} ends:\n{log_tail(child.log_path)}")


def log_tail(path: Path, lines: int = 15, most_bytes: int = 16_384) -> str:
    """The last lines of a log, without secrets."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - most_bytes))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return redacted("\n".join(text.splitlines()[-lines:]))
