"""The answer journal: append-only JSONL, one line a finished sample, content-keyed; the resume state of inference."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tasks.system.disk import room_for
from tasks.system.responses import Response

FSYNC_EVERY_LINES = 16
ADVICE = "All answers so far are kept. Free some space and start again: only the others are asked."


class Journal:
    """Open for appending; a torn last line is cut off, a sample that is already there is not written again."""

    def __init__(self, path: Path, reserve: int) -> None:
        """Open a journal.

        Args:
            path: Made when missing.
            reserve: Bytes that must stay free on its volume.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._reserve = path, reserve
        self.sample_ids = answered_ids(path)
        # Unbuffered: a line is the kernel's as soon as it is written, so only the machine's end can lose it.
        self._out = path.open("ab", buffering=0)
        self._unsynced_lines = 0

    def append(self, response: Response) -> None:
        """Keep one finished sample.

        Raises:
            NotEnoughDisk: The volume is full but for the reserve; all lines so far are whole.
        """
        if response.sample_id in self.sample_ids:
            return
        self._write(response.to_line().encode() + b"\n")
        self.sample_ids.add(response.sample_id)
        self._unsynced_lines += 1
        if self._unsynced_lines >= FSYNC_EVERY_LINES:
            self._sync()

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._out.fileno()).st_size
        with room_for(self.path, len(line), self._reserve, f"the next answer in {self.path}", ADVICE):
            try:
                if self._out.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "only a part of a line was written")
            except OSError:
                self._out.truncate(size)
                raise

    def _sync(self) -> None:
        os.fsync(self._out.fileno())
        self._unsynced_lines = 0

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sync()
        self._out.close()


def answered_ids(path: Path) -> set[str]:
    """The samples that a journal has; a torn last line counts for nothing."""
    if not path.exists():
        return set()
    _cut_torn_tail(path)
    return {sample_id for sample_id, _ in _offsets(path)}


def read_answers(path: Path, sample_ids: list[str]) -> Iterator[Response]:
    """The answers to these samples, in the order of the ids; ids that the journal lacks are left out."""
    offsets = dict(_offsets(path))
    with path.open("rb") as source:
        for sample_id in sample_ids:
            if sample_id in offsets:
                source.seek(offsets[sample_id])
                yield Response(**json.loads(source.readline()))


def _offsets(path: Path) -> Iterator[tuple[str, int]]:
    offset = 0
    with path.open("rb") as source:
        for line in source:
            yield json.loads(line)["sample_id"], offset
            offset += len(line)


def _cut_torn_tail(path: Path) -> None:
    """Drop what a crash left after the last newline: that sample is asked again."""
    with path.open("ab+") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            file.truncate(end)
