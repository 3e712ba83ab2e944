"""What a hub repository holds, which of it is needed, and what of that is on disk and verified."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, ModelInfo

from tasks.errors import BadInput
from tasks.system.files import write_atomically
from tasks.system.hub import STATE_FOLDER

WANTED_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")
"""Never pickles: loading one runs what is in it."""
CONFIG_NAME = "config.json"
LISTING_NAME = "listing.json"
INCOMPLETE_SUFFIX = ".incomplete"
HASHED_AT_ONCE_BYTES = 8 * 2**20


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, and when its copy on disk was found to be right."""

    path: str
    size_bytes: int
    sha256: str | None
    """Of a file in LFS."""
    blob_sha1: str | None
    """git's name for the content of a file outside LFS."""
    verified_mtime_ns: int | None = None
    """Modification time of the copy whose bytes were verified."""

    @property
    def checksum(self) -> str | None:
        """What the hub says that the content hashes to, if it says so."""
        return self.sha256 or self.blob_sha1

    def checksum_of(self, path: Path, on_bytes: Callable[[int], None]) -> str | None:
        """The same hash of a file on disk.

        Args:
            path: The file.
            on_bytes: Called with each count of bytes that was read.
        """
        if self.checksum is None:
            return None
        size_bytes = path.stat().st_size
        digest = hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % size_bytes)
        with path.open("rb") as source:
            while block := source.read(HASHED_AT_ONCE_BYTES):
                digest.update(block)
                on_bytes(len(block))
        return digest.hexdigest()

    def is_verified(self, folder: Path) -> bool:
        """Whether the copy in a folder is the one that was verified, by size and time."""
        found = stamp(folder / self.path)
        return found is not None and found == (self.size_bytes, self.verified_mtime_ns)

    def incomplete(self, folder: Path) -> Path:
        """Where the bytes are until they are whole and verified: another content is never continued with them."""
        name = hashlib.sha256(f"{self.path} {self.size_bytes} {self.checksum}".encode()).hexdigest()
        return folder / STATE_FOLDER / f"{name[:32]}{INCOMPLETE_SUFFIX}"


@dataclass(frozen=True)
class Listing:
    """The needed files of a repository at a commit."""

    repository: str
    revision: str
    commit: str
    files: list[HubFile]

    def unverified(self, folder: Path) -> list[HubFile]:
        """The files whose verified copy is not in the folder."""
        return [file for file in self.files if not file.is_verified(folder)]

    def with_verified(self, file: HubFile, folder: Path) -> "Listing":
        """A copy that knows that this file, as it is on disk now, is right."""
        found = replace(file, verified_mtime_ns=(folder / file.path).stat().st_mtime_ns)
        return replace(self, files=[found if f.path == file.path else f for f in self.files])

    def with_verified_of(self, other: "Listing | None") -> "Listing":
        """A copy that knows what another listing knows of the same contents."""
        known = {(f.path, f.checksum): f.verified_mtime_ns for f in other.files} if other else {}
        files = [replace(f, verified_mtime_ns=known.get((f.path, f.checksum))) for f in self.files]
        return replace(self, files=files)


def stamp(path: Path) -> tuple[int, int] | None:
    """Size and modification time of a file, or None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def ask_hub(api: HfApi, repository: str, revision: str, timeout_seconds: float) -> Listing:
    """List the needed files of a repository.

    Raises:
        BadInput: The repository holds no checkpoint that is used here.
        httpx2.HTTPError: As ``huggingface_hub`` raises it.
        ValueError: What came is no listing.
    """
    try:
        info = api.model_info(repository, revision=revision, files_metadata=True, timeout=timeout_seconds)
    except (KeyError, TypeError) as error:  # of the client's own reading
        raise ValueError(f"a listing lacks what it must have: {error!r}") from error
    files = _needed(info, repository, revision)
    names = {file.path for file in files}
    if CONFIG_NAME not in names or not any(name.endswith(".safetensors") for name in names):
        found = sorted(sibling.rfilename for sibling in info.siblings or [])
        raise BadInput(
            f"{repository} at revision {revision} is not a checkpoint that is used here: config.json and *.safetensors "
            f"are needed (pickles are never loaded), found {', '.join(found[:20]) or 'nothing'}. Name another."
        )
    return Listing(repository, revision, info.sha or revision, files)


def _needed(info: ModelInfo, repository: str, revision: str) -> list[HubFile]:
    files = []
    siblings = info.siblings or []
    names = [sibling.rfilename for sibling in siblings]
    has_model_files = any(name.startswith("model") and name.endswith(".safetensors") for name in names)
    for sibling in siblings:
        path = PurePosixPath(sibling.rfilename)
        if path.is_absolute() or ".." in path.parts or path.parts[0] == STATE_FOLDER:
            raise BadInput(f"{repository} at revision {revision} lists a file outside of it, {path}. Do not use it.")
        # vLLM loads weights of the top folder only; "consolidated" are the same weights in another naming.
        is_copy = len(path.parts) > 1 or (has_model_files and path.name.startswith("consolidated"))
        if path.suffix not in WANTED_SUFFIXES or (path.suffix == ".safetensors" and is_copy):
            continue
        if sibling.size is None:
            raise BadInput(f"the hub gives no size for {path} of {repository}: is the endpoint really a hub?")
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        # The blob of a file in LFS is its pointer.
        blob_sha1 = sibling.blob_id if sibling.lfs is None else None
        files.append(HubFile(str(path), sibling.size, sha256, blob_sha1))
    return files


def saved_listing(folder: Path, repository: str, revision: str) -> Listing | None:
    """The listing of an earlier download of the same revision into this folder."""
    try:
        data = json.loads((folder / STATE_FOLDER / LISTING_NAME).read_text())
        listing = Listing(**{**data, "files": [HubFile(**file) for file in data["files"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return listing if (listing.repository, listing.revision) == (repository, revision) else None


def save_listing(listing: Listing, folder: Path) -> None:
    """Keep a listing for the next call, which may have no network."""
    write_atomically(folder / STATE_FOLDER / LISTING_NAME, json.dumps(asdict(listing), indent=1))
