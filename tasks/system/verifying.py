"""Every byte of a stage against the checksums that were kept when it was written, and what to do about damage."""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import BadProduct
from tasks.hidden_states.index import INDEX_NAME, METADATA_KEY, ShardRecord, StoredSample, read_index
from tasks.hidden_states.layout import StoreFormat
from tasks.system.files import sha256_of, write_atomically
from tasks.system.inventory import NAMES, StageFolder, files_below
from tasks.system.manifest import FileEntry, Manifest

BLOCK_BYTES = 8_000_000
HASHED_AT_ONCE = 4

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written."""

    path: str
    """Relative to the stage's folder."""
    fault: str
    """What was written and what is there."""
    mtime_ns: int | None = None
    """The time to give back, when every byte is right and only that differs, as after a copy that kept no times."""
    is_readable: bool = True
    """False when this user may not read the file, so that it is not known to be damaged."""


@dataclass(frozen=True)
class Verified:
    """What a stage's files turned out to be."""

    stage: StageFolder
    checked_bytes: int
    damaged: list[Damage]
    strays: list[str]
    """Files that nothing lists, relative to the stage's folder."""
    said: str
    """``ok``, ``damaged``, or why there was nothing to check."""


def entries_of(stage: StageFolder) -> list[FileEntry]:
    """The files whose checksums are known: by the manifest, or shard by shard while there is none.

    Raises:
        BadProduct: The index of unfinished states has a line that is no record.
    """
    if stage.state in ("complete", "damaged") and stage.manifest is not None:
        return stage.manifest.files
    if stage.kind == "states" and stage.state == "unfinished":
        records = {record.file: record for record in read_index(stage.folder)}
        return [FileEntry(r.file, r.size_bytes, r.mtime_ns, r.sha256) for r in records.values()]
    return []


def verify(stage: StageFolder, on_bytes: OnBytes = lambda count: None) -> Verified:
    """Hash every listed file of a stage.

    Args:
        stage: As the inventory found it.
        on_bytes: Called with every block that was read, from several threads.
    """
    try:
        entries = entries_of(stage)
    except BadProduct as error:
        return Verified(stage, 0, [Damage(INDEX_NAME, str(error))], [], "damaged")
    with ThreadPoolExecutor(min(HASHED_AT_ONCE, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda entry: _damage(stage.folder, entry, on_bytes), entries))
    damaged = [damage for damage in found if damage]
    if stage.state == "damaged" and stage.manifest is None:
        damaged = [Damage(path, fault) for path, fault in stage.unmatched.items()]
    strays = _strays(stage, {entry.path for entry in entries})
    size_bytes = sum(entry.size_bytes for entry in entries)
    return Verified(stage, size_bytes, damaged, strays, "damaged" if damaged else _said(stage, len(entries)))


def _said(stage: StageFolder, entries: int) -> str:
    if stage.state == "unfinished":
        return f"unfinished: {entries} shards are whole" if entries else "unfinished: no manifest, nothing to check by"
    said = {
        "complete": "ok",
        "damaged": "ok",  # its files have been put right since the inventory
        "consumed": "consumed: its files were used up and deleted on purpose",
        "journal": "journal: read line by line when inference starts, not hashed",
    }
    return said.get(stage.state, "unknown: not a stage's folder, or it cannot be read")


def _damage(folder: Path, entry: FileEntry, on_bytes: OnBytes) -> Damage | None:
    path = folder / entry.path
    try:
        status = path.stat()
        if status.st_size != entry.size_bytes:
            on_bytes(entry.size_bytes)
            return Damage(entry.path, f"{entry.size_bytes} B were written, {status.st_size} B are there")
        found = _sha256(path, on_bytes)
    except FileNotFoundError:
        on_bytes(entry.size_bytes)
        return Damage(entry.path, f"{entry.size_bytes} B were written, the file is missing")
    except PermissionError as error:
        return Damage(entry.path, f"it cannot be checked: {error.strerror}", is_readable=False)
    except OSError as error:
        return Damage(entry.path, f"it cannot be read: {error.strerror}")
    if found != entry.sha256:
        return Damage(entry.path, f"sha256 {entry.sha256[:16]}... was written, {found[:16]}... is there")
    if status.st_mtime_ns != entry.mtime_ns:
        return Damage(entry.path, "every byte is as written, but its time is another", entry.mtime_ns)
    return None


def _sha256(path: Path, on_bytes: OnBytes) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(BLOCK_BYTES):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()


def _strays(stage: StageFolder, listed: set[str]) -> list[str]:
    """Files that no manifest lists; what starts with a dot is a lock or a download's own record."""
    if stage.state not in ("complete", "damaged", "consumed"):
        return []
    names = files_below(stage.folder)
    return [name for name in names if name not in {*listed, *NAMES} and not name.startswith(".")]


def put_right(verified: Verified) -> list[str]:
    """Take damage out of the way, so that the next run makes anew what was damaged and nothing else.

    A damaged file is deleted; one whose time alone differs gets its time back. The index of hidden states is
    written anew from what the shards say of themselves, since without it no shard would be believed.

    Returns:
        What was done, one line a file.

    Raises:
        OSError: A file could not be deleted or changed.
    """
    return [text for damage in verified.damaged if (text := _put_right(verified, damage))]


def _put_right(verified: Verified, damage: Damage) -> str:
    stage, path = verified.stage, verified.stage.folder / damage.path
    if not damage.is_readable:
        return f"left alone: {path}"
    if damage.mtime_ns is not None:
        os.utime(path, ns=(path.stat().st_atime_ns, damage.mtime_ns))
        return f"gave its time back: {path}"
    if stage.kind == "states" and damage.path == INDEX_NAME:
        if stage.manifest is None:
            write_atomically(
                path, b"".join(line for line in path.read_bytes().splitlines(keepends=True) if _is_record(line))
            )
            return f"dropped the lines that are no record: {path}"
        _rebuild_index(stage.folder, stage.manifest, {d.path for d in verified.damaged})
        return f"written anew from its shards: {path}"
    if not path.exists():
        return ""
    path.unlink()
    return f"deleted: {path}"


def _rebuild_index(folder: Path, manifest: Manifest, bad: set[str]) -> None:
    """Write the index of hidden states from the manifest and the headers of the shards that are not bad."""
    path = folder / INDEX_NAME
    shards = [entry for entry in manifest.files if entry.path not in {*bad, INDEX_NAME}]
    write_atomically(path, "".join(_index_line(folder, entry) for entry in shards))
    for entry in manifest.files:
        if entry.path == INDEX_NAME and entry.sha256 == sha256_of(path):
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))  # as it was, so nothing need be made anew


def _index_line(folder: Path, entry: FileEntry) -> str:
    with (folder / entry.path).open("rb") as shard:  # safetensors: length of the header, then the header
        header = json.loads(shard.read(int.from_bytes(shard.read(8), "little")))
    store = json.loads(header["__metadata__"][METADATA_KEY])
    samples = [StoredSample(**sample) for sample in store.pop("samples")]
    record = ShardRecord(entry.path, entry.size_bytes, entry.mtime_ns, entry.sha256, StoreFormat(**store), samples)
    return record.to_line()


def _is_record(line: bytes) -> bool:
    try:
        data = json.loads(line)
        ShardRecord(**{**data, "format": StoreFormat(**data["format"])})
        return line.endswith(b"\n") and all(StoredSample(**sample) for sample in data["samples"])
    except (ValueError, TypeError, KeyError):
        return False
