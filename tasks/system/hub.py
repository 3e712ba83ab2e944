"""Checkpoints from a Hugging Face hub: exact need first, only the files that are used, checksums at the end."""

from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from tasks.errors import BadInput, TransferFailed
from tasks.system.disk import require
from tasks.system.files import sha256_of

WANTED_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")
"""Never pickles."""
REFUSALS = (401, 403, 404)
CLIENT_ERRORS = (HfHubHTTPError, LocalEntryNotFoundError, httpx2.HTTPError, OSError)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; small files that are not in LFS have no sha256."""

    path: str
    size_bytes: int
    sha256: str | None


def list_files(api: HfApi, repository: str, revision: str) -> list[HubFile]:
    """The files of a checkpoint that are used here.

    Raises:
        BadInput: The repository or revision does not exist, or this token may not read it.
        TransferFailed: The hub did not answer.
    """
    try:
        siblings = api.model_info(repository, revision=revision, files_metadata=True).siblings or []
    except CLIENT_ERRORS as error:
        raise _named(error, f"listing {repository} at revision {revision}") from error
    return [
        HubFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in siblings
        if sibling.rfilename.endswith(WANTED_SUFFIXES)
    ]


def fetch_checkpoint(
    repository: str, revision: str, folder: Path, endpoint: str | None, token: str | None, reserve: int
) -> list[HubFile]:
    """Download a checkpoint; what is already there is kept.

    Args:
        repository: ``organisation/name``.
        revision: Commit or tag.
        folder: Where the files go.
        endpoint: Another hub than the public one.
        token: For private and gated repositories.
        reserve: Bytes that must stay free on the volume.

    Returns:
        The files, all of them verified.

    Raises:
        NotEnoughDisk: Said before the first byte.
        BadInput: See ``list_files``.
        TransferFailed: The transfer broke off, or a file does not match the hub's checksum (it is deleted then).
    """
    files = list_files(HfApi(endpoint=endpoint, token=token), repository, revision)
    need = sum(file.size_bytes for file in files if not _has_size(folder / file.path, file.size_bytes))
    require(folder, need, reserve, f"downloading {repository}")
    try:
        snapshot_download(
            repository,
            revision=revision,
            local_dir=folder,
            endpoint=endpoint,
            token=token,
            allow_patterns=[file.path for file in files],
        )
    except CLIENT_ERRORS as error:
        raise _named(error, f"downloading {repository} at revision {revision} to {folder}") from error
    for file in files:
        _verify(folder, file, repository)
    return files


def _named(error: Exception, action: str) -> BadInput | TransferFailed:
    """Our error for the client's: a refusal is permanent, all else may pass."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in REFUSALS:
        return BadInput(
            f"{action} was refused with HTTP {status} ({type(error).__name__}). Check the name and the revision, "
            "accept the repository's terms, or give the hub access block a token that may read it."
        )
    return TransferFailed(f"{action} broke off: {error}.")


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.exists() and path.stat().st_size == size_bytes


def _verify(folder: Path, file: HubFile, repository: str) -> None:
    path = folder / file.path
    if file.sha256 is not None and (found := sha256_of(path)) != file.sha256:
        path.unlink()
        raise TransferFailed(
            f"{path} of {repository} has sha256 {found}, the hub says {file.sha256}. It was deleted; run again."
        )
