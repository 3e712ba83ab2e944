"""The target's checkpoint on local disk, whatever it comes from; made or fetched once, by one process at a time."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.errors import BadInput
from tasks.recipe import ModelSource, Target, identity_of
from tasks.system.dequantise import DequantiseResult, DequantiseSpec
from tasks.system.engine_child import run_in_engine
from tasks.system.hub import Fetched
from tasks.system.manifest import Stage, place, write_manifest
from tasks.system.model_folder import check_checkpoint, folder_identity
from tasks.system.run import Run

VERSION = 1
LOCK_NAME = ".lock"

Fetch = Callable[[Run, ModelSource, Path], Fetched]
"""Fetches a hub checkpoint into a folder."""


def target_identity(target: Target) -> dict[str, object]:
    """What identifies the target: of a local folder its content, else its source."""
    identity = identity_of(target)
    if target.source.kind == "folder":
        folder = Path(target.source.name).expanduser()
        return {**identity, "source": folder_identity(folder)}
    return identity


def target_stage(run: Run) -> Stage:
    """Where a target that is made or fetched is kept."""
    source = run.recipe.target.source
    return place(run.data_root, "targets", "target", VERSION, source=identity_of(source), dtype=run.recipe.target.dtype)


def target_folder(run: Run) -> Path:
    """Where the checkpoint is, or will be."""
    source = run.recipe.target.source
    return Path(source.name).expanduser().absolute() if source.kind == "folder" else target_stage(run).folder


def target_is_ready(run: Run) -> bool:
    """Whether the checkpoint needs no making or fetching."""
    return run.recipe.target.source.kind == "folder" or target_stage(run).manifest() is not None


def ensure_target(run: Run, fetch: Fetch) -> Path:
    """The folder with the target's checkpoint, made or fetched if it is not there yet.

    Raises:
        BadInput: The folder, package or repository is not what it must be.
    """
    folder = target_folder(run)
    if run.recipe.target.source.kind == "folder":
        check_checkpoint(folder)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    # Serving and drafter-from-scratch both need it, and run side by side.
    with _one_at_a_time(folder / LOCK_NAME):
        if not target_is_ready(run):
            _make(run, folder, fetch)
    return folder


def _make(run: Run, folder: Path, fetch: Fetch) -> None:
    source, stage = run.recipe.target.source, target_stage(run)
    if source.kind == "hub":
        fetched = fetch(run, source, folder)
        facts = {"source": source.name, "commit": fetched.commit}
        write_manifest(stage, fetched.files, facts, fetched.sha256)
        return
    package, _, file_name = source.name.partition("/")
    if not file_name:
        raise BadInput(f"target.source.name must be <package>/<file>.gguf, found {source.name!r}.")
    spec = DequantiseSpec(package=package, file_name=file_name, dtype=run.recipe.target.dtype, out_folder=folder)
    python, module = run.engine_python, "tasks.system.dequantise"
    made = run_in_engine(
        python, module, spec, DequantiseResult, run.log_folder, lambda _: None, {},
        grace_seconds=run.deadline.of_stages.grace_seconds,
    )  # fmt: skip
    # The lock is no product: every start touches it.
    write_manifest(stage, [name for name in made.files if name != LOCK_NAME], {"source": source.name})


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
