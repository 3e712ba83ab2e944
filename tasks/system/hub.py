"""Checkpoints from a Hugging Face hub, fetched by a child process that may be stopped or killed at any moment.

Only the ``huggingface_hub`` of the child is asked anything; here are the records that go in and come out.
What the child keeps beside the checkpoint, in ``<folder>/.hub``, is enough to go on after any end of it.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tasks.errors import BadInput, ChildDied, PermanentError, TransferFailed
from tasks.redaction import URL_CREDENTIALS
from tasks.system.disk import require
from tasks.system.engine_child import OnProgress, run_in_engine

MODULE = "tasks.system.hub_download"
STATE_FOLDER = ".hub"
"""Listing, unfinished files, spec, progress and log of a download, inside the checkpoint's folder."""

STATE_BYTES = 1_000_000
"""More than the spec, the listing, the outcome and the log of a try."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How much a download puts up with, and for how long."""

    files_at_once: int = 8
    """Transfers side by side: one connection seldom fills the line."""
    tries: int = 6
    """Tries in a row without a new byte worth naming, for each request; progress starts the count again."""
    first_wait_seconds: float = 1.0
    """Pause after the first failure; doubled each time up to a minute, with jitter."""
    longest_wait_seconds: float = 600.0
    """Most that is waited at a time when the hub names a time itself."""
    silence_seconds: float = 30.0
    """A connection without a byte for this long is cut and taken up again."""
    stall_timeout_seconds: float = 900.0
    """A child without any progress for this long is ended; more than the longest wait."""


@dataclass(frozen=True, kw_only=True)
class FetchSpec:
    """What the child is told. The token is not in it: specs are files, so it goes by environment."""

    repository: str
    revision: str
    folder: Path
    endpoint: str | None
    reserve_bytes: int
    patience: Patience


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A checkpoint of which every file was verified."""

    commit: str
    """What the revision meant when it was asked."""
    files: list[str]
    sha256: dict[str, str]
    """Checksums that were verified, by file: nobody needs to hash half a terabyte again."""
    fetched_bytes: int
    """What came over the network this time."""
    cached_bytes: int = 0
    """What the cache of the hub's client had."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each kind of fault was survived this time."""
    warnings: list[str] = field(default_factory=list)


def fetch_checkpoint(
    repository: str,
    revision: str,
    folder: Path,
    *,
    endpoint: str | None,
    token: str | None,
    reserve_bytes: int,
    cache_folder: Path | None,
    on_progress: OnProgress,
    patience: Patience = Patience(),
) -> Fetched:
    """Download what a checkpoint needs; what is there and verified is kept, what is half there is continued.

    Args:
        repository: ``organisation/name``.
        revision: Branch, tag or commit.
        folder: Where the files go.
        endpoint: Another hub than the public one.
        token: For private and gated repositories; without it the one that ``hf auth login`` or ``HF_TOKEN`` gives.
        reserve_bytes: Bytes that must stay free on the volume.
        cache_folder: Cache of the hub's client, in which files are looked for first; without it ``HF_HUB_CACHE``.
        on_progress: Gets bytes that are there and bytes in all, from before the first byte on.
        patience: Limits.

    Raises:
        NotEnoughDisk: Said before the first byte.
        BadInput: The endpoint has credentials in it, the hub refuses, the repository has no checkpoint that is used
            here, or it serves wrong bytes.
        TransferFailed: The hub is away, too busy, or the transfer broke off too often; the next call goes on.
        Stopped: The run is ending.
    """
    _refuse_credentials(endpoint or os.environ.get("HF_ENDPOINT", ""))
    spec = FetchSpec(
        repository=repository,
        revision=revision,
        folder=folder.absolute(),
        endpoint=endpoint,
        reserve_bytes=reserve_bytes,
        patience=patience,
    )
    # A volume that is full takes no spec, no outcome and no log either.
    require(folder, STATE_BYTES, 0, f"the record of downloading {repository}")
    environment = {"HF_TOKEN": token} if token else {}
    environment |= {"HF_HUB_CACHE": str(cache_folder)} if cache_folder else {}
    state, stall_seconds = folder / STATE_FOLDER, patience.stall_timeout_seconds
    going_on = f"going on with downloading {repository}"
    try:
        return run_in_engine(
            Path(sys.executable), MODULE, spec, Fetched, state, on_progress, environment, stall_seconds
        )
    except ChildDied as error:
        require(folder, STATE_BYTES, 0, going_on)
        raise TransferFailed(
            f"downloading {repository} at revision {revision} to {folder} was cut short; the next try goes on from "
            f"what is there. {error}"
        ) from error
    except PermanentError as error:
        if type(error) is PermanentError:  # What a child without a word of its own is taken for.
            require(folder, STATE_BYTES, 0, going_on)
        raise


def _refuse_credentials(endpoint: str) -> None:
    if URL_CREDENTIALS.search(endpoint):
        raise BadInput(
            f"the hub's address must be https://host, found {endpoint!r} with credentials in it, which would be "
            "written into files. Take them out of the hub access block's endpoint (or of HF_ENDPOINT), and give the "
            "block a token."
        )
