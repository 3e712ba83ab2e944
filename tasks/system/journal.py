"""The answer journal: append-only JSONL, one line a finished sample, content-keyed; the resume state of inference."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tasks.system.responses import Response

FSYNC_EVERY_LINES = 16


class Journal:
    """Open for appending; a torn last line is cut off, a sample that is already there is not written again."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        _cut_torn_tail(path)
        self.sample_ids = {sample_id for sample_id, _ in _offsets(path)}
        self._out = path.open("a", encoding="utf-8")
        self._unsynced_lines = 0

    def append(self, response: Response) -> None:
        """Keep one finished sample."""
        if response.sample_id in self.sample_ids:
            return
        self.sample_ids.add(response.sample_id)
        self._out.write(response.to_line() + "\n")
        self._unsynced_lines += 1
        if self._unsynced_lines >= FSYNC_EVERY_LINES:
            self._sync()

    def _sync(self) -> None:
        self._out.flush()
        os.fsync(self._out.fileno())
        self._unsynced_lines = 0

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sync()
        self._out.close()


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
