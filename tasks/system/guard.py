"""The guard: starts one command and makes sure that nothing of it outlives the process that asked for it.

Run as ``python guard.py <descriptor> <grace seconds> <command...>`` in a session of its own. The asking
process holds the write end of a pipe; the guard holds the read end. However the asking process ends, the
pipe closes, and the guard ends the command: SIGTERM, the grace time, SIGKILL. It is a child subreaper, so
that processes that lost their parent come to it too (vLLM's engine core does when its API process is
killed). It exits when it has no descendant left, with the command's exit code: its own exit is the proof.

Standard library only, and started by path, so that it is up in milliseconds and does not depend on the
environment that it guards.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.1


def descendants(root_pid: int) -> list[int]:
    """Process ids below ``root_pid``, from /proc, zombies included."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name may hold spaces and brackets, so the fields are counted from its end.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root_pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


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


def main() -> int:
    """Guard one command; see the module's docstring."""
    pipe, grace_seconds, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(pipe, False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stopping_since: float | None = None
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: asked.append(received))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    exit_code: int | None = None
    watched = [pipe]
    while True:
        left, status = reap(child.pid)
        if status is not None:
            exit_code = os.waitstatus_to_exitcode(status)
        if not left:
            return exit_code if exit_code is not None and exit_code >= 0 else 128 - (exit_code or 0)
        readable, _, _ = select.select(watched, [], [], POLL_SECONDS)
        if readable:
            watched = []  # The pipe carries no bytes: readable means closed.
        must_stop = not watched or asked or exit_code is not None
        if must_stop and stopping_since is None:
            stopping_since = time.monotonic()
            signal_all(signal.SIGTERM)
        if stopping_since is not None and time.monotonic() - stopping_since > grace_seconds:
            signal_all(signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
