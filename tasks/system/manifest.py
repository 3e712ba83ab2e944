"""A stage's products on disk: a folder that is complete when its manifest, written last, matches.

Validity looks at sizes and modification times only, so that two terabytes are not hashed before a
start; checksums are for the first read and for ``hero-run verify``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import BadProduct
from tasks.system.files import fsync_folder, sha256_of, write_atomically

MANIFEST_NAME = "manifest.json"
CONSUMED_NAME = "consumed.json"
"""What the manifest is called once its files were used up and deleted on purpose."""


@dataclass(frozen=True)
class FileEntry:
    """One product file, relative to the stage's folder."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    is_content: bool = True
    """False for bookkeeping, which may change while the content stays the same."""


@dataclass(frozen=True)
class Manifest:
    """What a stage made, from what, and the facts about it that later stages and people need."""

    stage: str
    digest: str
    identity: dict[str, Any]
    files: list[FileEntry]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def content_sha256(self) -> str:
        """What downstream digests fold in: names and checksums, not times, so that an equal file changes nothing."""
        files = {entry.path: entry.sha256 for entry in self.files if entry.is_content}
        return digest_of({"digest": self.digest, "files": files})

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(entry.size_bytes for entry in self.files)


@dataclass(frozen=True)
class Stage:
    """Where a stage's products belong: a folder named by the digest of everything that shapes them."""

    name: str
    identity: dict[str, Any]
    folder: Path
    resumes_from: tuple[Path, ...] = ()
    """Folders beside its own that hold unfinished work of it."""

    @property
    def digest(self) -> str:
        """Hex digest of the identity."""
        return digest_of(self.identity)

    def manifest(self) -> Manifest | None:
        """The manifest, if it is there and every file has the size and time that it lists."""
        return read_valid_manifest(self.folder)

    def consumed(self) -> Manifest | None:
        """The manifest that products had which were used up and deleted on purpose."""
        return _read(self.folder / CONSUMED_NAME)


def digest_of(identity: Mapping[str, Any]) -> str:
    """Sixteen hex digits that name an identity: canonical JSON, sha256."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def place(root: Path, kind: str, name: str, version: int, **identity: Any) -> Stage:
    """The stage of this identity under ``root/kind``.

    Args:
        root: The data root.
        kind: Sub-folder for stages of this kind, such as ``states``.
        name: The stage's name, such as ``extraction``.
        version: Raised by hand when the code changes what the stage makes.
        **identity: Everything that shapes the products, as plain JSON data.
    """
    whole = {"stage": name, "version": version, **identity}
    return Stage(name, whole, root / kind / digest_of(whole))


def write_manifest(
    stage: Stage,
    files: list[str],
    facts: Mapping[str, Any],
    checksums: Mapping[str, str] | None = None,
    bookkeeping: tuple[str, ...] = (),
) -> Manifest:
    """List the finished files and declare the stage complete.

    Args:
        stage: Where the products are.
        files: Paths relative to the stage's folder; the manifest itself may be among them and is left out.
        facts: Further plain JSON data for later stages and people.
        checksums: sha256 of files that their writer has already hashed.
        bookkeeping: Those of the files that are not content (an index with times in it).
    """
    known = checksums or {}
    listed = sorted(set(files) - {MANIFEST_NAME, CONSUMED_NAME})  # of a stage that is made again they are there
    entries = [_entry(stage.folder, path, known.get(path), path not in bookkeeping) for path in listed]
    manifest = Manifest(stage.name, stage.digest, stage.identity, entries, dict(facts))
    write_atomically(stage.folder / MANIFEST_NAME, json.dumps(asdict(manifest), indent=1))
    (stage.folder / CONSUMED_NAME).unlink(missing_ok=True)
    return manifest


def _entry(folder: Path, path: str, sha256: str | None, is_content: bool) -> FileEntry:
    status = (folder / path).stat()
    return FileEntry(path, status.st_size, status.st_mtime_ns, sha256 or sha256_of(folder / path), is_content)


def read_valid_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None when it is absent, torn, or does not match the files."""
    manifest = _read(folder / MANIFEST_NAME)
    return manifest if manifest is not None and not unmatched(folder, manifest) else None


def unmatched(folder: Path, manifest: Manifest) -> dict[str, str]:
    """Listed files that are not there as listed, each with what is wrong with it."""
    return {entry.path: fault for entry in manifest.files if (fault := _fault(folder / entry.path, entry))}


def _fault(path: Path, entry: FileEntry) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    if status.st_size != entry.size_bytes:
        return f"{status.st_size} B long, {entry.size_bytes} B were written"
    return "changed since it was written" if status.st_mtime_ns != entry.mtime_ns else ""


def _read(path: Path) -> Manifest | None:
    try:
        data = json.loads(path.read_text())
        manifest = Manifest(**{**data, "files": [FileEntry(**entry) for entry in data["files"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_sound = isinstance(manifest.identity, dict) and isinstance(manifest.facts, dict)
    is_sound &= all(isinstance(e.path, str) and isinstance(e.size_bytes, int) for e in manifest.files)
    return manifest if is_sound else None


def recorded(folder: Path) -> Manifest | None:
    """What was finished here once, whether or not its files are still as listed; None when nothing says so."""
    return _read(folder / MANIFEST_NAME) or _read(folder / CONSUMED_NAME)


def consume(folder: Path) -> int:
    """Delete the products of a stage that were used up; what used them up keeps the stage finished.

    Killed at any moment it leaves the stage whole (the manifest still counts) or consumed, and the next call
    deletes what is left. Should the stage have to be made again after all, the files that are left are without
    an index or do not fill it, so they are not taken for the whole.

    Returns:
        How many bytes were freed.

    Raises:
        BadProduct: The products are neither whole nor consumed already.
    """
    manifest = read_valid_manifest(folder)
    if manifest is not None:
        write_atomically(folder / CONSUMED_NAME, (folder / MANIFEST_NAME).read_text())
        (folder / MANIFEST_NAME).unlink()
        fsync_folder(folder)
    elif (folder / MANIFEST_NAME).exists() or (manifest := _read(folder / CONSUMED_NAME)) is None:
        raise BadProduct(
            f"{folder} has no manifest that matches its files, so they are not taken for used up. "
            "Check them with `hero-run verify`, or run the recipe again: what is missing is made anew."
        )
    freed = 0
    for entry in manifest.files:  # sorted by name, so a states folder loses its index before its shards
        path = folder / entry.path
        freed += path.stat().st_size if path.exists() else 0
        path.unlink(missing_ok=True)
    return freed
