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
from tasks.system.files import sha256_of, write_atomically

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """One product file, relative to the stage's folder."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


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
        return digest_of({"digest": self.digest, "files": {entry.path: entry.sha256 for entry in self.files}})


@dataclass(frozen=True)
class Stage:
    """Where a stage's products belong: a folder named by the digest of everything that shapes them."""

    name: str
    identity: dict[str, Any]
    folder: Path

    @property
    def digest(self) -> str:
        """Hex digest of the identity."""
        return digest_of(self.identity)

    def manifest(self) -> Manifest | None:
        """The manifest, if it is there and every file has the size and time that it lists."""
        return read_valid_manifest(self.folder)


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
    stage: Stage, files: list[str], facts: Mapping[str, Any], checksums: Mapping[str, str] | None = None
) -> Manifest:
    """List the finished files and declare the stage complete.

    Args:
        stage: Where the products are.
        files: Paths relative to the stage's folder.
        facts: Further plain JSON data for later stages and people.
        checksums: sha256 of files that their writer has already hashed.
    """
    entries = [_entry(stage.folder, path, (checksums or {}).get(path)) for path in sorted(files)]
    manifest = Manifest(stage.name, stage.digest, stage.identity, entries, dict(facts))
    write_atomically(stage.folder / MANIFEST_NAME, json.dumps(asdict(manifest), indent=1))
    return manifest


def _entry(folder: Path, path: str, sha256: str | None) -> FileEntry:
    status = (folder / path).stat()
    return FileEntry(path, status.st_size, status.st_mtime_ns, sha256 or sha256_of(folder / path))


def read_valid_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None when it is absent, torn, or does not match the files."""
    try:
        data = json.loads((folder / MANIFEST_NAME).read_text())
        manifest = Manifest(**{**data, "files": [FileEntry(**entry) for entry in data["files"]]})
        matches = all(_matches(folder, entry) for entry in manifest.files)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return manifest if matches else None


def _matches(folder: Path, entry: FileEntry) -> bool:
    status = (folder / entry.path).stat()
    return (status.st_size, status.st_mtime_ns) == (entry.size_bytes, entry.mtime_ns)


def verify(folder: Path) -> int:
    """Hash every listed file.

    Returns:
        How many bytes were checked.

    Raises:
        BadProduct: The manifest or a file is missing or differs; the message names it.
    """
    manifest = read_valid_manifest(folder)
    if manifest is None:
        raise BadProduct(f"{folder} has no manifest that matches its files. Run again: what is missing is made anew.")
    for entry in manifest.files:
        found = sha256_of(folder / entry.path)
        if found != entry.sha256:
            raise BadProduct(
                f"{folder / entry.path}: sha256 {entry.sha256} was written, {found} is there. "
                "Delete the file and run again."
            )
    return sum(entry.size_bytes for entry in manifest.files)
