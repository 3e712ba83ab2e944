"""The guard: starts one command and makes sure that nothing of it outlives the process that asked for it.

Run as ``python guard.py <settings as JSON> <command...>`` in a session of its own. The asking process holds
the write end of a pipe; the guard holds the read end. However the asking process ends, the pipe closes, and
the guard ends the command: SIGTERM, the grace time, SIGKILL. It is a child subreaper, so that processes that
lost their parent come to it too (vLLM's engine core does when its API process is killed). It exits when it
has no descendant left, with the command's exit code: its own exit is the proof.

Only SIGKILL of the guard itself gets past that. So it keeps a record of every process below it, by process id
*and* start time, for the next run to end exactly those (``tasks.system.processes.end_recorded``); the record
goes when the guard exits.

Standard library only, and started by path, so that it is up in milliseconds and does not depend on the
environment that it guards.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.1
LOOK_SECONDS = 2.0
"""Time between two looks at the log's size and at the processes below."""

Identity = tuple[int, int]
"""A process for certain: its id, and its start in clock ticks since boot (ids are used again)."""


def main() -> int:
    """Guard one command; see the module's docstring."""
    settings, command = json.loads(sys.argv[1]), sys.argv[2:]
    pipe, grace_seconds = settings["pipe"], settings["grace_seconds"]
    os.set_inheritable(pipe, False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: asked.append(received))
    record = Record(Path(settings["record"]), command)
    record.update()  # before the command: from its first moment on, somebody knows who guards it
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    stopping_since: float | None = None
    exit_code: int | None = None
    looked, watched = 0.0, [pipe]
    while True:
        left, status = reap(child.pid)
        if status is not None:
            exit_code = os.waitstatus_to_exitcode(status)
        if not left:
            record.remove()
            return exit_code if exit_code is not None and exit_code >= 0 else 128 - (exit_code or 0)
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            record.update()
            rotate(Path(settings["log"]), settings["log_limit_bytes"])
        readable, _, _ = select.select(watched, [], [], POLL_SECONDS)
        if readable:
            watched = []  # The pipe carries no bytes: readable means closed.
        must_stop = not watched or asked or exit_code is not None
        if must_stop and stopping_since is None:
            stopping_since = time.monotonic()
            signal_all(signal.SIGTERM)
        if stopping_since is not None and time.monotonic() - stopping_since > grace_seconds:
            signal_all(signal.SIGKILL)


class Record:
    """The file that names every process of a guarded command."""

    def __init__(self, path: Path, command: list[str]) -> None:
        self._path, self._written = path, ""
        self._facts: dict[str, Any] = {"boot": boot_id(), "guard": identity(os.getpid()), "command": command[:6]}

    def update(self) -> None:
        """Write the record if there are other processes now; a full disk costs the record, not the command."""
        members = [known for pid in descendants(os.getpid()) if (known := identity(pid))]
        text = json.dumps({**self._facts, "members": members})
        if text != self._written:
            partial = self._path.with_name(self._path.name + ".partial")
            try:
                partial.write_text(text)
                partial.replace(self._path)
            except OSError:
                return
            self._written = text

    def remove(self) -> None:
        """Nothing is left: there is nothing to remember."""
        self._path.unlink(missing_ok=True)


def boot_id() -> str:
    """Names this boot of the machine: process ids and start times mean nothing after the next."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str]:
    # The name may hold spaces and brackets, so the fields are counted from its end; the first is the state.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def identity(pid: int) -> Identity | None:
    """The process that has this id now, or None when there is none (a zombie counts as none)."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return None if fields[0] == "Z" else (pid, int(fields[19]))


def descendants(root_pid: int) -> list[int]:
    """Process ids below ``root_pid``, from /proc, zombies included."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  (a Path for every entry would cost a third of this)
        if entry.isdigit():
            try:
                parent = int(_stat(int(entry))[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, queue = [], [root_pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def rotate(log: Path, limit_bytes: int) -> None:
    """Keep a log's file bounded: its content moves to ``<log>.1`` and it begins anew.

    The command holds the file open for appending, so it is copied and cut rather than renamed, as logrotate's
    ``copytruncate`` does; what is printed in between is lost.
    """
    try:
        if log.stat().st_size > limit_bytes:
            shutil.copyfile(log, log.with_name(log.name + ".1"))
            os.truncate(log, 0)
    except OSError:
        return


def reap(command_pid: int) -> tuple[bool, int | None]:
    """Collect ended children.

    Returns:
        Whether any child is left, and the command's wait status if it was collected now.
    """
    status_of_command = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, status_of_command
        if pid == 0:
            return True, status_of_command
        if pid == command_pid:
            status_of_command = status


def signal_all(number: int) -> None:
    """Send a signal to every descendant."""
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main())
