"""From a recipe's name to a run on this machine: overrides, blocks, one run at a time, no child left behind."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from prefect import runtime
from pydantic import BaseModel

from blocks import DataVolume, VllmEngine, saved_or_default
from flows.recipes import named
from tasks.errors import PermanentError
from tasks.logs import say_faults_plainly
from tasks.system.disk import require_writable
from tasks.system.processes import all_children_end
from tasks.system.run import Run

LOCK_NAME = "run.lock"


def run_name() -> str:
    """The name of a flow run: its recipe and when it started."""
    return f"{runtime.flow_run.parameters['recipe']}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def open_run(recipe_name: str, overrides: BaseModel | None, refresh: Sequence[str]) -> Iterator[Run]:
    """Everything that a run's tasks need, for as long as the run lasts.

    On every way out all work is told to stop and every child process is ended.

    Raises:
        RecipeError: The recipe or an override is wrong.
        BadInput: The data root cannot be written.
        PermanentError: Another run is using the data root.
    """
    say_faults_plainly()
    asked = overrides.model_dump(exclude_none=True) if overrides else {}
    site = saved_or_default(DataVolume).model_dump(include={"root", "reserve_share"}, exclude_none=True)
    if "root" in site:
        site["data_root"] = site.pop("root")
    recipe = named(recipe_name, {**site, **asked})
    data_root = Path(recipe.data_root).expanduser().absolute()
    require_writable(data_root)
    python = saved_or_default(VllmEngine).interpreter()
    with _only_run(data_root), all_children_end():
        yield Run(
            recipe=recipe,
            id=str(runtime.flow_run.id),
            name=str(runtime.flow_run.name),
            data_root=data_root,
            engine_python=python,
            refresh=tuple(refresh),
        )


@contextmanager
def _only_run(data_root: Path) -> Iterator[None]:
    """Hold the lock of a data root; the system drops it when this process ends, however it ends."""
    path = data_root / LOCK_NAME
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise PermanentError(
                f"another hero run (process {lock.read().strip() or 'unknown'}) is using {data_root}. "
                "Wait until it has ended, stop it, or choose another data root."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
