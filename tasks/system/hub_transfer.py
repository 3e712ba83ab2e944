"""Files from a hub, one by one: continued where they broke off, named only when their bytes are verified.

The bodies are streamed here and not by ``huggingface_hub.snapshot_download``: in version 2.4 that writes to a file
with a random name and deletes it on every failure, so that nothing is ever continued (a killed process leaves it
behind, for good). Session, addresses, token and errors are the client's own.
"""

import os
import threading
from pathlib import Path

from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.utils import build_hf_headers

from tasks.errors import BadInput, TransferFailed
from tasks.system.disk import room_for
from tasks.system.files import publish
from tasks.system.hub import FetchSpec
from tasks.system.hub_cache import cached_copy, copy_to, link_to
from tasks.system.hub_faults import Asked, Waits
from tasks.system.hub_listing import HubFile, stamp

LARGEST_FILE_BYTES = constants.MAX_HTTP_DOWNLOAD_SIZE
WHOLE_COPIES = 2
"""Wrong bytes once may be the way; twice they are what the hub serves."""

ADVICE = "Free some space and run again: what was fetched is kept."


class Transfer:
    """Fetches and verifies the files of one repository; its counts may be read at any time."""

    def __init__(self, spec: FetchSpec, endpoint: str, waits: Waits) -> None:
        self.spec, self.endpoint, self.waits = spec, endpoint, waits
        self.hashed_bytes = self.fetched_bytes = self.cached_bytes = 0
        self._lock = threading.Lock()

    def is_right(self, file: HubFile) -> bool:
        """Whether the copy under the file's own name is what the hub lists, by its bytes."""
        path = self.spec.folder / file.path
        found = stamp(path)
        return (
            found is not None
            and found[0] == file.size_bytes
            and file.checksum_of(path, self._count_hashed) == file.checksum
        )

    def link_cached(self, file: HubFile, commit: str) -> None:
        """Take a file from the client's cache where that costs no space; it is verified when it is fetched."""
        cached, part = cached_copy(self.spec.repository, commit, file), file.incomplete(self.spec.folder)
        if cached is not None and size_of(part) < file.size_bytes and link_to(cached, part):
            self._count_cached(file.size_bytes)

    def fetch(self, file: HubFile, commit: str) -> None:
        """Fetch what a file lacks, verify it, and give it its name; of what the client's cache has, nothing is lacking.

        Raises:
            BadInput: The hub refuses, or serves other bytes than it lists.
            TransferFailed: Too many tries in a row brought nothing.
        """
        spec, part = self.spec, file.incomplete(self.spec.folder)
        asked = Asked(f"downloading {file.path} of", spec.repository, spec.revision, self.endpoint)
        self._copy_cached(file, part, commit)
        for copy in range(1, WHOLE_COPIES + 1):
            self.waits.until_done(
                asked, lambda: self._continue(file, part, commit), spec.patience.tries, lambda: size_of(part)
            )
            found = file.checksum_of(part, self._count_hashed)
            if found == file.checksum:
                break
            part.unlink()
            self.waits.count("wrong bytes")
            said = f"{asked}: its bytes hash to {found}, but the hub lists {file.checksum}. It was deleted"
            if copy == WHOLE_COPIES:
                # Connections have checksums of their own, so a third copy would be the same: not worth retrying.
                raise BadInput(
                    f"{said}, fetched again, and still differs: the hub, or a proxy on the way, serves other bytes "
                    "than it lists. Name another revision, or another endpoint in the hub access block."
                )
            print(f"{said} and is fetched again.", flush=True)
        path = spec.folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(part, path)

    def _copy_cached(self, file: HubFile, part: Path, commit: str) -> None:
        cached = None if part.exists() else cached_copy(self.spec.repository, commit, file)
        if cached is not None:
            purpose = f"copying {file.path} of {self.spec.repository} from {constants.HF_HUB_CACHE}"
            with room_for(part, file.size_bytes, self.spec.reserve_bytes, purpose, ADVICE):
                copy_to(cached, part)
            self._count_cached(file.size_bytes)

    def _continue(self, file: HubFile, part: Path, commit: str) -> None:
        """One request for what the part lacks."""
        there = size_of(part)
        if there == file.size_bytes and part.exists():
            return
        url = hf_hub_url(self.spec.repository, file.path, revision=commit, endpoint=self.endpoint)
        # Compressed bodies have no ranges, and other lengths.
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if there:
            headers["Range"] = f"bytes={there}-"
        timeout = self.spec.patience.silence_seconds
        purpose = f"downloading {file.path} of {self.spec.repository}"
        with (
            room_for(part, file.size_bytes - there, self.spec.reserve_bytes, purpose, ADVICE),
            part.open("ab", buffering=0) as out,
            get_session().stream("GET", url, headers=headers, timeout=timeout) as response,
        ):
            if response.status_code == 416:
                out.truncate(0)
            hf_raise_for_status(response)
            if there and not response.headers.get("content-range", "").startswith(f"bytes {there}-"):
                out.truncate(0)  # The server does not continue, so it begins again.
            for block in response.iter_bytes():
                out.write(block)
                with self._lock:
                    self.fetched_bytes += len(block)
            os.fsync(out.fileno())
        self._check_size(file, part, url)

    def _check_size(self, file: HubFile, part: Path, url: str) -> None:
        found = size_of(part)
        if found > file.size_bytes:
            part.unlink()
        if found != file.size_bytes:
            raise TransferFailed(f"{url} ended at {found:,} of {file.size_bytes:,} bytes.")

    def _count_cached(self, count: int) -> None:
        with self._lock:
            self.cached_bytes += count

    def _count_hashed(self, count: int) -> None:
        with self._lock:
            self.hashed_bytes += count


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if it is not there."""
    found = stamp(path)
    return found[0] if found else 0
