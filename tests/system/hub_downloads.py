"""A small checkpoint on a stub hub, and the two ways to fetch it: in the real child, and here."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.system.child import Reporter
from tasks.system.engine_child import Progress
from tasks.system.guard import descendants
from tasks.system.hub import STATE_FOLDER, Fetched, FetchSpec, Patience, fetch_checkpoint
from tasks.system.hub_download import download
from tests.system.stub_hub import LISTING, Cue, StubHub, stub_hub

WEIGHTS = bytes(range(256)) * 4000
HALF = len(WEIGHTS) // 2
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# model",
}
TOTAL = len(FILES["config.json"]) + len(WEIGHTS)
HASTE = Patience(tries=3, first_wait_seconds=0.02, silence_seconds=2.0)
NEEDED = ["config.json", "model.safetensors"]


def fetch(
    hub: StubHub,
    folder: Path,
    patience: Patience = HASTE,
    reserve: int = 0,
    token: str | None = None,
    heard: list[Progress] | None = None,
    cache: Path | None = None,
) -> Fetched:
    """In a child process, as the stages do."""
    return fetch_checkpoint(
        "org/drafter",
        "main",
        folder,
        endpoint=hub.endpoint,
        token=token,
        reserve_bytes=reserve,
        cache_folder=cache,
        on_progress=(heard if heard is not None else []).append,
        patience=patience,
    )


def fetch_here(
    hub: StubHub,
    folder: Path,
    repository: str = "org/drafter",
    revision: str = "main",
    endpoint: str | None = None,
    reserve: int = 0,
) -> Fetched:
    """What the child does, in this process: quicker where only the answer matters."""
    folder.mkdir(exist_ok=True)
    spec = FetchSpec(
        repository=repository,
        revision=revision,
        folder=folder,
        endpoint=endpoint or hub.endpoint,
        reserve_bytes=reserve,
        patience=HASTE,
    )
    return download(spec, Reporter(Path(os.devnull)))


def serve(files: dict[str, bytes] | None = None, **cues: Iterator[Cue]):
    """A hub whose weights file (``weights=``) or listing (``listing=``) fails on cue."""
    names = {"weights": "model.safetensors", "listing": LISTING, "config": "config.json"}
    return stub_hub("org/drafter", files or FILES, cues={names[name]: cue for name, cue in cues.items()})


def incomplete_files(folder: Path) -> list[Path]:
    return list((folder / STATE_FOLDER).glob("*.incomplete"))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def in_background(*arguments, **named) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def run() -> None:
        try:
            fetch(*arguments, **named)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def wait_for_bytes(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while sum(path.stat().st_size for path in incomplete_files(folder)) < count:
        assert time.monotonic() < deadline, "the bytes did not come"
        time.sleep(0.02)


def download_pids() -> list[int]:
    mine = []
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[1:3] == [b"-m", b"tasks.system.hub_download"]:
            mine.append(pid)
    return mine
