"""One run at a time: on a data root, and on a machine's GPUs. The system drops a lock however its process ends."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tasks.errors import PermanentError
from tasks.system.lock_holder import Holder, read_holder, write_holder

RUN_LOCK_NAME = "run.lock"
GPU_LOCK_NAME = "hero-run-gpus.lock"


@contextmanager
def only_run_on(data_root: Path, me: Holder) -> Iterator[Holder | None]:
    """Hold the lock of a data root; yields who had it before.

    Raises:
        PermanentError: Another run has it; the message names that run and its process.
    """
    with (data_root / RUN_LOCK_NAME).open("a+") as lock:
        before = _take(lock, me, f"is using {data_root}", "or choose another data root (--data-root DIR)")
        yield before


@contextmanager
def only_run_on_gpus(me: Holder, devices: Path = Path("/dev"), folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of this machine's GPUs; of a machine that has none there is no lock.

    Args:
        me: This run.
        devices: Where device files are.
        folder: Where the lock is, the same for every user of the machine; by default the one for temporary files.

    Raises:
        PermanentError: Another run has it; the message names that run, its process and its data root.
    """
    if not any(devices.glob("nvidia[0-9]*")):
        yield
        return
    with _open_for_all((folder or Path(tempfile.gettempdir())) / GPU_LOCK_NAME) as lock:
        _take(lock, me, "is using the GPUs of this machine", "and start again: what is finished is not repeated")
        yield


def _open_for_all(path: Path) -> TextIO:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o666)
    except FileExistsError:
        # Without O_CREAT, which Linux refuses for another user's file in a folder like /tmp.
        descriptor = os.open(path, os.O_RDWR)
    return os.fdopen(descriptor, "r+")


def _take(lock: TextIO, me: Holder, doing: str, otherwise: str) -> Holder | None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = read_holder(lock)
        who = str(other) if other and other.is_alive else "another process, not known to be a hero run,"
        raise PermanentError(f"{who} {doing}. Wait until it has ended, stop it, {otherwise}.") from None
    before = read_holder(lock)
    write_holder(lock, me)
    return before
