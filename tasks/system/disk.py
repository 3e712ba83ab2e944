"""Free space: asked before anything is written, with both numbers in the refusal."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import BadInput, NotEnoughDisk

FULL = (errno.ENOSPC, errno.EDQUOT)
ADVICE = "Free some space, choose another data root, or ask for fewer samples (--set prompts.training_samples=N)."


def existing_parent(path: Path) -> Path:
    """The nearest folder above ``path``, or ``path`` itself, that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write on the filesystem of ``path``."""
    return shutil.disk_usage(existing_parent(path)).free


def reserve_bytes(path: Path, reserve_share: float) -> int:
    """The part of the filesystem of ``path`` that is to stay free."""
    return int(shutil.disk_usage(existing_parent(path)).total * reserve_share)


def require(path: Path, need_bytes: int, reserve: int, purpose: str, advice: str = ADVICE) -> None:
    """Refuse to start what would not fit.

    Args:
        path: Where it is going to be written.
        need_bytes: Its size.
        reserve: Bytes that are to stay free after it.
        purpose: What it is, for the message.
        advice: What to do, for the message.

    Raises:
        NotEnoughDisk: Need, reserve, free space and path are in the message.
    """
    free = free_bytes(path)
    if need_bytes + reserve > free:
        raise NotEnoughDisk(
            f"{purpose} needs {readable_bytes(need_bytes)} and {readable_bytes(reserve)} are kept in reserve, but "
            f"{existing_parent(path)} has {readable_bytes(free)} free. {advice}"
        )


@contextmanager
def room_for(path: Path, need_bytes: int, reserve: int, purpose: str, advice: str) -> Iterator[None]:
    """Ask for room before a file is written, and name the volume when it fills up meanwhile.

    Args:
        path: Where the file is going to be.
        need_bytes: Its size.
        reserve: Bytes that are to stay free after it.
        purpose: What is written, for the message.
        advice: What to do, for the message.

    Raises:
        NotEnoughDisk: There is no room, or the body failed because the volume or a quota was full.
    """
    require(path, need_bytes, reserve, purpose, advice)
    try:
        yield
    except Exception as error:
        if not _is_full_volume(error):
            raise
        raise NotEnoughDisk(
            f"{purpose} needs {readable_bytes(need_bytes)} and {readable_bytes(reserve)} are kept in reserve, but "
            f"{existing_parent(path)} filled up while it was written; {readable_bytes(free_bytes(path))} are free. "
            f"{advice}"
        ) from error


def _is_full_volume(error: BaseException | None) -> bool:
    """Whether this error, or one that it hides (torch's writer raises a RuntimeError over it), says so."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disk(error: OSError, path: Path) -> NotEnoughDisk | None:
    """What the system's "no space left" while writing below ``path`` means to a user; None for other errors."""
    if not _is_full_volume(error):
        return None
    return NotEnoughDisk(
        f"the volume filled up while {error.filename or path} was written: {readable_bytes(free_bytes(path))} are "
        f"free ({error.strerror}). What was finished before is kept; make room and start again, it goes on from there."
    )


def require_writable(folder: Path) -> None:
    """Make the folder and try to write in it.

    Raises:
        BadInput: The folder cannot be made or written; the message has the reason.
        NotEnoughDisk: The volume is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-") as probe:
            probe.write(b"x" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NotEnoughDisk(
                f"the data root {folder} is on a full volume ({readable_bytes(free_bytes(folder))} free). "
                "Free some space or choose another data root (--data-root DIR)."
            ) from error
        raise BadInput(
            f"the data root {folder} cannot be written: {error.strerror}. "
            "Choose a folder that this user can write (--data-root DIR)."
        ) from error


def readable_bytes(count: int) -> str:
    """Decimal units, three significant digits: 5.40 TB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or unit == "PB":
            return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError
