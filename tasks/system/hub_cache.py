"""Files that the hub's own client has fetched before (``hf download``), taken over instead of fetched again.

They are linked where the cache is on the same volume, which costs no space, and copied where it is not. Either way
they are verified like everything that comes from the hub. Links are safe: nothing here ever writes into a file that
has its whole length, and deleting one leaves the cache's.
"""

import os
import shutil
from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from tasks.system.hub_listing import HubFile, stamp

COPIED_AT_ONCE_BYTES = 8 * 2**20


def cached_copy(repository: str, commit: str, file: HubFile) -> Path | None:
    """The file of this commit in the client's cache (``HF_HUB_CACHE``), if one of the listed size is there."""
    found = try_to_load_from_cache(repository, file.path, cache_dir=constants.HF_HUB_CACHE, revision=commit)
    if not isinstance(found, str):
        return None
    path = Path(found).resolve()  # the entry is a link to the content
    there = stamp(path)
    return path if there is not None and there[0] == file.size_bytes and os.access(path, os.R_OK) else None


def link_to(cached: Path, part: Path) -> bool:
    """Make the cache's copy the part that is to be verified, if both are on one volume."""
    try:
        part.unlink(missing_ok=True)
        os.link(cached, part)
    except OSError:
        return False
    return True


def copy_to(cached: Path, part: Path) -> None:
    """The same over volumes."""
    with cached.open("rb") as source, part.open("wb") as out:
        shutil.copyfileobj(source, out, COPIED_AT_ONCE_BYTES)
        out.flush()
        os.fsync(out.fileno())
