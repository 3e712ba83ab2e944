"""``index.jsonl``: which shards of a folder are whole, and which samples each one holds; torch-free.

One line a shard, appended and fsynced only after the shard has its final name. A shard without a
line does not exist, and a line whose file is missing or differs in size or time is not believed.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.errors import BadProduct
from tasks.hidden_states.layout import StoreFormat
from tasks.system.files import PARTIAL_SUFFIX, fsync_folder, write_atomically

INDEX_NAME = "index.jsonl"
SHARD_GLOB = "shard-*.safetensors"
METADATA_KEY = "hero_run"
"""Key of the safetensors metadata under which a shard describes itself (JSON)."""


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


@dataclass(frozen=True)
class ShardRecord:
    """One line of the index."""

    file: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    format: StoreFormat
    samples: list[StoredSample]

    def matches(self, folder: Path) -> bool:
        """Whether the file is there with the size and time that it was written with."""
        try:
            status = (folder / self.file).stat()
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size_bytes, self.mtime_ns)


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
    """Declare a shard whole. Its file must have its final name already."""
    path = folder / INDEX_NAME
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as out:
        out.write(_line(record))
        out.flush()
        os.fsync(out.fileno())
    if is_new:
        fsync_folder(folder)


def recover(folder: Path) -> list[ShardRecord]:
    """Bring folder and index into agreement before writing: what does not match is missing.

    Lines whose file is missing or differs are dropped; shard files without a believed line, and
    half-written ones, are removed. Their samples are then captured again.

    Returns:
        The records that hold.

    Raises:
        BadProduct: A line other than the last is not a record.
    """
    path = folder / INDEX_NAME
    believed = [record for record in read_index(folder) if record.matches(folder)]
    # Index first: a crash in between leaves stray files, never a line without its file.
    content = "".join(map(_line, believed))
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != content:
        write_atomically(path, content)
    kept = {record.file for record in believed}
    for file in [*folder.glob(SHARD_GLOB), *folder.glob(SHARD_GLOB + PARTIAL_SUFFIX)]:
        if file.name not in kept:
            file.unlink()
    return believed


def describe(store: StoreFormat, samples: list[StoredSample]) -> str:
    """What a shard says about itself in its safetensors metadata, as JSON."""
    return json.dumps({**asdict(store), "samples": [asdict(sample) for sample in samples]})


def _line(record: ShardRecord) -> str:
    return json.dumps(asdict(record)) + "\n"


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
