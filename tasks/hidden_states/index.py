"""``index.jsonl``: which shards of a folder are whole, and which samples each one holds; torch-free.

One line a shard, appended and fsynced only after the shard has its final name. A shard without a
line does not exist, and a line whose file is missing or differs in size or time is not believed.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import BadProduct
from tasks.hidden_states.layout import StoreFormat
from tasks.system.disk import full_disk
from tasks.system.files import PARTIAL_SUFFIX, fsync_folder, write_atomically

INDEX_NAME = "index.jsonl"
SHARD_GLOB = "shard-*.safetensors"
METADATA_KEY = "hero_run"
"""Key of the safetensors metadata under which a shard describes itself (JSON)."""
CORRUPT_SUFFIX = ".corrupt"
"""What a reader appends to the name of a shard whose checksum is wrong; removed once the shard is made again."""


@dataclass(frozen=True)
class StoredSample:
    """Where a sample lies in its shard."""

    id: str
    split: str
    source: str
    offset: int
    """First row, in tokens."""
    length: int
    """Rows, in tokens."""
    token_hash: str
    teacher_agrees: bool
    """Whether its last state, through the lm_head, gives the token that vLLM picks."""


@dataclass(frozen=True)
class ShardRecord:
    """One line of the index."""

    file: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    format: StoreFormat
    samples: list[StoredSample]
    rejected: dict[str, str] = field(default_factory=dict)
    """Samples that were planned for this shard and have no states: id to the reason."""

    def fault(self, folder: Path) -> str | None:
        """What is wrong with the file, as far as its size and time can tell; None when it is as it was written."""
        path = folder / self.file
        try:
            status = path.stat()
        except FileNotFoundError:
            aside = path.with_name(path.name + CORRUPT_SUFFIX)
            return "was found to be corrupt when it was read" if aside.exists() else "is missing"
        if status.st_size != self.size_bytes:
            return f"was written with {self.size_bytes:,} B and has {status.st_size:,} B now"
        return None if status.st_mtime_ns == self.mtime_ns else "was changed after it was written"

    def to_line(self) -> str:
        """The record's line in the index."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class Recovered:
    """What a folder held when it was taken over."""

    records: list[ShardRecord]
    """Shards that are as they were written."""
    lost: dict[str, str]
    """File name of a shard that has to be made again to what was wrong with it."""


def read_index(folder: Path) -> list[ShardRecord]:
    """The lines of the index, believed or not; empty when there is none.

    A torn last line is what a crash while appending leaves, so it is ignored.

    Raises:
        BadProduct: Any other line is not a record.
    """
    path = folder / INDEX_NAME
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    # What follows the last newline is empty, or an append that did not finish.
    return [_record(path, number, line) for number, line in enumerate(lines[:-1], 1)]


def append_record(folder: Path, record: ShardRecord) -> None:
    """Declare a shard whole. Its file must have its final name already.

    Raises:
        OSError: The line could not be written, for want of space say; the index is as it was before.
    """
    path = folder / INDEX_NAME
    is_new = not path.exists()
    # Unbuffered: a buffer would be written again, perhaps with success, when the file is closed after a fault.
    with path.open("ab", buffering=0) as out:
        before_bytes = os.fstat(out.fileno()).st_size
        try:
            _write_whole(out, record.to_line().encode())
            os.fsync(out.fileno())
        except OSError:
            out.truncate(before_bytes)
            raise
    if is_new:
        fsync_folder(folder)


def recover(folder: Path) -> Recovered:
    """Bring folder and index into agreement before writing: what does not match is missing.

    Lines whose file is missing or differs are dropped; shard files without a believed line, and
    half-written ones, are removed. Their samples are then captured again.

    Raises:
        BadProduct: A line other than the last is not a record.
        NotEnoughDisk: The index could not be rewritten.
    """
    faults = {record.file: (record, record.fault(folder)) for record in read_index(folder)}
    believed = [record for record, fault in faults.values() if fault is None]
    # Index first: a crash in between leaves stray files, never a line without its file.
    _rewrite(folder, believed)
    lost = {file: fault for file, (_, fault) in faults.items() if fault is not None}
    kept = {record.file for record in believed}
    for path in [*folder.glob(SHARD_GLOB), *folder.glob(SHARD_GLOB + PARTIAL_SUFFIX)]:
        if path.name not in kept:
            lost.setdefault(path.name.removesuffix(PARTIAL_SUFFIX), "was not finished when the run before ended")
            path.unlink()
    return Recovered(believed, lost)


def sort_index(folder: Path) -> list[ShardRecord]:
    """Put the lines into the order of the plan, whatever was captured last; the records.

    Raises:
        NotEnoughDisk: The index could not be rewritten.
    """
    # A record without a sample is never written, and samples lie in a shard as they were planned.
    records = sorted(read_index(folder), key=lambda record: (-record.samples[0].length, record.samples[0].id))
    _rewrite(folder, records)
    return records


def describe(store: StoreFormat, samples: list[StoredSample]) -> str:
    """What a shard says about itself in its safetensors metadata, as JSON."""
    return json.dumps({**asdict(store), "samples": [asdict(sample) for sample in samples]})


def _rewrite(folder: Path, records: list[ShardRecord]) -> None:
    path, content = folder / INDEX_NAME, "".join(record.to_line() for record in records)
    if not path.exists() or path.read_text(encoding="utf-8", errors="replace") == content:
        return
    try:
        write_atomically(path, content)
    except OSError as error:
        if (full := full_disk(error, path)) is None:
            raise
        raise full from error


def _write_whole(out: Any, line: bytes) -> None:
    """A raw file may take a part of what it is given, on a nearly full volume say."""
    left = memoryview(line)
    while left:
        left = left[out.write(left) :]


def _record(path: Path, number: int, line: bytes) -> ShardRecord:
    try:
        data: dict[str, Any] = json.loads(line)
        samples = [StoredSample(**sample) for sample in data["samples"]]
        return ShardRecord(**{**data, "format": StoreFormat(**data["format"]), "samples": samples})
    except (ValueError, TypeError, KeyError) as error:
        raise BadProduct(
            f"{path}, line {number}: a record of a shard was needed, found {line[:80]!r} ({error}). "
            "Delete that line and run the extraction again: only its samples are captured anew."
        ) from error
