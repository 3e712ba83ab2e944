"""The child that downloads a checkpoint: ``python -m tasks.system.hub_download <spec.json>``."""

import fcntl
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants

from tasks.errors import BadInput, HeroRunError, Stopped, TransferFailed
from tasks.system.child import Reporter, child_main
from tasks.system.disk import require
from tasks.system.hub import STATE_FOLDER, Fetched, FetchSpec
from tasks.system.hub_faults import Asked, HubAway, Waits
from tasks.system.hub_listing import (
    CONFIG_NAME,
    INCOMPLETE_SUFFIX,
    HubFile,
    Listing,
    ask_hub,
    save_listing,
    saved_listing,
)
from tasks.system.hub_transfer import LARGEST_FILE_BYTES, Transfer, size_of

LOOK_SECONDS = 0.2
REPORT_SECONDS = 1.0

T = TypeVar("T")


class Download:
    """One checkpoint on its way. ``run`` works on a thread of its own, so that the main thread can stop it."""

    def __init__(self, spec: FetchSpec, reporter: Reporter) -> None:
        self.spec, self.folder, self.reporter = spec, spec.folder, reporter
        self.endpoint = (spec.endpoint or constants.ENDPOINT).rstrip("/")
        self.waits = Waits(spec.patience)
        self.transfer = Transfer(spec, self.endpoint, self.waits)
        self.listing: Listing | None = None
        self.phase = "asking the hub"
        self.away: str | None = None
        """Why the hub could not be asked, when the saved listing is used instead."""
        self._reported: object = None
        self._lock = threading.Lock()

    def run(self) -> Fetched:
        """List, verify what is there, check the room, fetch the rest."""
        saved = saved_listing(self.folder, self.spec.repository, self.spec.revision)
        self.listing = self._current_listing(saved)
        self._begin("verifying")
        at_once = self.spec.patience.files_at_once
        in_parallel(self._check_copy, self.listing.unverified(self.folder), at_once)
        missing = self.listing.unverified(self.folder)
        if missing:
            self._refuse_what_cannot_be(missing)
            self._drop_what_is_not_listed(saved, missing)
            for file in missing:
                self.transfer.link_cached(file, self.listing.commit)
            self._require_room()
            self._begin("downloading")
            # The config says that a checkpoint is there, so it comes when all else is; small files show refusals early.
            config = [file for file in missing if file.path == CONFIG_NAME]
            others = [file for file in missing if file.path != CONFIG_NAME]
            in_parallel(self._fetch, sorted(others, key=lambda file: file.size_bytes), at_once)
            in_parallel(self._fetch, config, at_once)
        self.report()
        return Fetched(
            commit=self.listing.commit,
            files=[file.path for file in self.listing.files],
            sha256={file.path: file.sha256 for file in self.listing.files if file.sha256},
            fetched_bytes=self.transfer.fetched_bytes,
            cached_bytes=self.transfer.cached_bytes,
            faults=dict(self.waits.counts),
            warnings=[f"{self.away} {self.folder} holds all of commit {self.listing.commit}, verified, and is used."]
            if self.away
            else [],
        )

    @property
    def position(self) -> str:
        """How far it is."""
        done, total = self._amounts()
        return f"at {done:,} of {total:,} bytes" if total else "at its beginning"

    def _amounts(self) -> tuple[int, int]:
        """Bytes that are there, and bytes in all."""
        files = self.listing.files if self.listing else []
        return sum(self._bytes_there(file) for file in files), sum(file.size_bytes for file in files)

    def report(self) -> None:
        """Tell how many bytes are there, if anything changed since this was last told."""
        with self._lock:
            done, total = self._amounts()
            counts = {f"times {kind}": count for kind, count in dict(self.waits.counts).items()}
            figures = {"hashed_bytes": self.transfer.hashed_bytes, **counts}
            told = (self.phase, done, figures)
            if told != self._reported:
                self._reported = told
                self.reporter.progress(self.phase, done, total, "bytes", **figures)

    def _begin(self, phase: str) -> None:
        self.phase = phase
        self.report()

    def _current_listing(self, saved: Listing | None) -> Listing:
        """The hub's listing, or the saved one where the hub need not or cannot be asked."""
        spec = self.spec
        complete = saved is not None and not saved.unverified(self.folder)
        if saved is not None and complete and saved.commit == spec.revision:
            return saved  # A commit never changes.
        asked = Asked("listing", spec.repository, spec.revision, self.endpoint)
        api, seconds = HfApi(endpoint=self.endpoint), spec.patience.silence_seconds
        try:
            listing = self.waits.until_done(
                asked,
                lambda: ask_hub(api, spec.repository, spec.revision, seconds),
                tries=1 if complete else spec.patience.tries,
            )
        except HubAway as error:
            if saved is None:
                raise _for_lack_of_a_hub(
                    f"{error} {self.folder} has no listing of an earlier download either, so nothing in it can be "
                    "verified. If it holds the checkpoint, name it as a source of kind folder."
                ) from error
            self.away = str(error)
            return saved
        listing = listing.with_verified_of(saved)
        save_listing(listing, self.folder)
        return listing

    def _check_copy(self, file: HubFile) -> None:
        """Believe, or else delete, a file that has the listed name but was not verified."""
        path = self.folder / file.path
        if not path.exists():
            return
        if self.transfer.is_right(file):
            self._keep(file)
            return
        self.waits.count("wrong file")
        if self.away is None:  # Else nothing better can be had.
            print(f"{path} is not what the hub lists: it is deleted and fetched again.", flush=True)
            path.unlink()

    def _fetch(self, file: HubFile) -> None:
        self._require_room()
        assert self.listing is not None
        self.transfer.fetch(file, self.listing.commit)
        self._keep(file)

    def _keep(self, file: HubFile) -> None:
        with self._lock:
            assert self.listing is not None
            self.listing = self.listing.with_verified(file, self.folder)
            save_listing(self.listing, self.folder)

    def _refuse_what_cannot_be(self, missing: list[HubFile]) -> None:
        if self.away is not None:
            names = ", ".join(file.path for file in missing[:5])
            raise _for_lack_of_a_hub(
                f"{self.away} The earlier download in {self.folder} cannot be used instead: "
                f"{len(missing)} of its files are missing or differ: {names}."
            )
        for file in missing:
            if file.size_bytes > LARGEST_FILE_BYTES:
                raise BadInput(
                    f"{file.path} of {self.spec.repository} has {file.size_bytes:,} bytes, but a hub serves at most "
                    f"{LARGEST_FILE_BYTES:,} by HTTP. Fetch it with `hf download`, and name the folder as source."
                )

    def _drop_what_is_not_listed(self, saved: Listing | None, missing: list[HubFile]) -> None:
        """Delete files of an earlier commit, and unfinished contents that nobody asks for any more."""
        assert self.listing is not None
        earlier = {file.path for file in saved.files} if saved else set()
        for name in earlier - {file.path for file in self.listing.files}:
            (self.folder / name).unlink(missing_ok=True)
        unfinished = {file.incomplete(self.folder) for file in missing}
        for path in (self.folder / STATE_FOLDER).glob(f"*{INCOMPLETE_SUFFIX}"):
            if path not in unfinished:
                path.unlink()

    def _require_room(self) -> None:
        assert self.listing is not None
        missing = self.listing.unverified(self.folder)
        need = sum(max(0, file.size_bytes - size_of(file.incomplete(self.folder))) for file in missing)
        require(self.folder, need, self.spec.reserve_bytes, f"downloading {self.spec.repository}")

    def _bytes_there(self, file: HubFile) -> int:
        found = size_of(self.folder / file.path) or size_of(file.incomplete(self.folder))
        return min(found, file.size_bytes)


def _for_lack_of_a_hub(message: str) -> HeroRunError:
    """The user's own switch stays as it is until they change it; a network comes back by itself."""
    return BadInput(message) if constants.is_offline_mode() else TransferFailed(message)


def in_parallel(work: Callable[[T], None], items: list[T], at_once: int) -> None:
    """Do the work on every item; the first error is raised at once, without waiting for the others.

    The threads are daemons, so that nothing that they wait for can keep the process from ending.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)

    def take_items() -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(item)
            except Exception as error:
                ended.put(error)
                return
            ended.put(None)

    for _ in range(min(at_once, len(items))):
        threading.Thread(target=take_items, daemon=True).start()
    for _ in items:
        if (error := ended.get()) is not None:
            raise error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One download into a folder at a time."""
    state = folder / STATE_FOLDER
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TransferFailed(f"another process is downloading to {folder}. Try again when it has ended.") from error
        yield


def download(spec: FetchSpec, reporter: Reporter) -> Fetched:
    """Download a checkpoint; see ``tasks.system.hub.fetch_checkpoint``."""
    with _alone(spec.folder):
        work = Download(spec, reporter)
        results: queue.SimpleQueue[Fetched | Exception] = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put(work.run())
            except TransferFailed as error:  # HubAway included, which is of use only here
                results.put(TransferFailed(f"{error} The download stands {work.position}."))
            except Exception as error:
                results.put(error)

        threading.Thread(target=run, daemon=True).start()
        result = _watch(work, results, reporter)
    if isinstance(result, Exception):
        raise result
    return result


def _watch(
    work: Download, results: "queue.SimpleQueue[Fetched | Exception]", reporter: Reporter
) -> Fetched | Exception:
    reported = time.monotonic()
    while True:
        try:
            return results.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            if reporter.stop_requested:
                return Stopped(f"downloading to {work.folder} was stopped; the next call goes on from what is there.")
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                work.report()


if __name__ == "__main__":
    code: object = 0
    try:
        child_main(FetchSpec, download)
    except SystemExit as end:
        code = end.code
    # Transfers may be waiting for bytes on their threads: the outcome is written, so nothing is waited for.
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)
