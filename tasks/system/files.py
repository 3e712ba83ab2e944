"""Whole files or none: written aside, flushed, renamed; and their checksums."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL_SUFFIX = ".partial"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old one or the new one whole."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    with removed_on_failure(partial), partial.open("wb") as out:
        out.write(content.encode() if isinstance(content, str) else content)
        out.flush()
        os.fsync(out.fileno())
    publish(partial, path)


@contextmanager
def removed_on_failure(partial: Path) -> Iterator[None]:
    """Remove a file whose writing failed: what is half written must not keep a full volume full."""
    try:
        yield
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def publish(partial: Path, path: Path) -> None:
    """Rename a finished, fsynced file to its final name and make the rename durable."""
    partial.replace(path)
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's content."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
