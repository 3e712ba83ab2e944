"""Processes that outlived a run, because their guard was killed together with it; found again and ended.

A guard (``tasks.system.guard``) keeps a record of every process below it, by id and start time. A record
whose guard is gone names exactly what was left, and nothing else.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import PermanentError
from tasks.system import guard

POLL_SECONDS = 0.2
RECORD_SUFFIX = ".processes.json"
"""Beside a child's log, while anything of the child is alive."""
GUARD_WAIT_SECONDS = 60.0
"""How long a guard may take to end its command: above every grace time."""
KILL_WAIT_SECONDS = 20.0
"""How long processes may take to vanish after SIGKILL."""


def end_orphans(folder: Path) -> list[str]:
    """End what earlier runs left below a folder of logs, because they were killed together with their guards.

    Only processes whose id *and* start time are on record are ended, and their descendants.

    Returns:
        A sentence for each command of which something was left.

    Raises:
        PermanentError: Something is still there after SIGKILL; the message names the processes.
    """
    return [
        f"ended {len(ended)} processes that an earlier run left ({record.parent.name}): {ended}"
        for record in sorted(folder.rglob("*" + RECORD_SUFFIX))
        if (ended := end_recorded(record))
    ]


def end_recorded(record: Path, grace_seconds: float = 10.0) -> list[int]:
    """End the processes of one record that are still there, then delete it.

    Args:
        record: The guard's record.
        grace_seconds: Time between SIGTERM and SIGKILL when there is no guard any more.

    Returns:
        The processes' ids.

    Raises:
        PermanentError: Something is still there after SIGKILL.
    """
    facts = _facts(record)
    if facts["boot"] != guard.boot_id():
        record.unlink()
        return []
    left = _with_descendants([facts["guard"], *facts["members"]])
    # A guard that is still alive knows best: it is ending its command, or does so when it is told.
    guarding = _alive([facts["guard"]])
    _signal(guarding or left, signal.SIGTERM)
    deadline = time.monotonic() + (GUARD_WAIT_SECONDS if guarding else grace_seconds)
    while _alive(left) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    _kill(_with_descendants(left), facts["command"])
    record.unlink(missing_ok=True)
    return sorted(pid for pid, _ in left)


def end_unguarded(log_path: Path) -> list[int]:
    """End what a killed guard left of the command with this log; one whose guard lives is somebody's, and left alone.

    Returns:
        The processes' ids.
    """
    record = log_path.with_name(log_path.name + RECORD_SUFFIX)
    if not record.exists() or _alive([_facts(record)["guard"]]):
        return []
    return end_recorded(record)


def _facts(record: Path) -> dict[str, Any]:
    try:
        return json.loads(record.read_text())
    except ValueError:  # cut by a crash of the machine, which ended them all
        return {"boot": "", "guard": [0, 0], "members": [], "command": [""]}


def _kill(left: list[guard.Identity], command: Sequence[str]) -> None:
    _signal(left, signal.SIGKILL)
    deadline = time.monotonic() + KILL_WAIT_SECONDS
    while still := _alive(left):
        if time.monotonic() > deadline:
            raise still_there([pid for pid, _ in still], command)
        time.sleep(POLL_SECONDS)


def _alive(known: Sequence[Sequence[int]]) -> list[guard.Identity]:
    return [(pid, start) for pid, start in known if guard.identity(pid) == (pid, start)]


def _with_descendants(known: Sequence[Sequence[int]]) -> list[guard.Identity]:
    found = dict.fromkeys(_alive(known))
    for pid, _ in list(found):
        found |= {below: None for i in guard.descendants(pid) if (below := guard.identity(i))}
    return list(found)


def _signal(processes: Sequence[guard.Identity], number: int) -> None:
    for pid, _ in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def still_there(pids: Sequence[int], command: Sequence[str]) -> PermanentError:
    """The error for processes that nothing ends."""
    return PermanentError(
        f"processes {list(pids)} of {command[0]} are still there {KILL_WAIT_SECONDS:.0f} s after SIGKILL. "
        "End them by hand (a stuck driver call?) before the next run."
    )
