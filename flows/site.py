"""From a recipe's name to a run on this machine: overrides, blocks, one run at a time, no child left behind."""

import contextvars
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from uuid import UUID

from prefect import runtime
from prefect.logging import get_run_logger
from pydantic import BaseModel

from blocks import DataVolume, VllmEngine, saved_or_default
from flows.deadline import AskedDeadline
from flows.locks import only_run_on, only_run_on_gpus
from flows.no_secrets import refuse_key_arguments, refuse_secrets
from flows.recipes import named
from flows.run_deadline import deadline_of_this_run, in_time, keeping
from flows.run_states import end_killed_run
from flows.state_watch import StateWatch
from tasks import artifacts
from tasks.errors import PermanentError
from tasks.logs import say_faults_plainly
from tasks.recipe import Recipe, changed
from tasks.redaction import secrets_hidden
from tasks.system import ledger
from tasks.system.disk import require_writable
from tasks.system.lock_holder import Holder
from tasks.system.orphans import end_orphans
from tasks.system.processes import all_children_end
from tasks.system.run import Run

PUBLISH_SECONDS = 15.0

_last_faults: str | None = None


def run_name() -> str:
    """The name of a flow run: its recipe and when it started."""
    return f"{runtime.flow_run.parameters['recipe']}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def open_run(
    recipe_name: str, overrides: BaseModel | None, refresh: Sequence[str], asked: AskedDeadline | None
) -> Iterator[Run]:
    """Everything that a run's tasks need, for as long as the run lasts.

    On every way out all work is told to stop, every child process is ended, and the faults on the way are told.

    Raises:
        RecipeError: The recipe, an override or the deadline is wrong.
        BadInput: The data root cannot be written.
        PermanentError: Another run is using the data root, or the GPUs.
        StoppedFromOutside: The run was cancelled, or ended by an automation.
        DeadlineReached: It cut a stage short, or came between two.
    """
    say_faults_plainly()
    engine = saved_or_default(VllmEngine)
    deadline = deadline_of_this_run(asked)
    recipe = in_time(_recipe_here(recipe_name, overrides, engine), deadline)
    data_root = Path(recipe.data_root).expanduser().absolute()
    require_writable(data_root)
    run = Run(
        recipe=recipe,
        id=str(runtime.flow_run.id),
        name=str(runtime.flow_run.name),
        data_root=data_root,
        engine_python=engine.interpreter(),
        refresh=tuple(refresh),
        deadline=deadline,
    )
    me, watch = Holder.me(run.id, run.name, data_root), StateWatch(UUID(run.id))
    with only_run_on(data_root, me) as before, only_run_on_gpus(me), watch.last_word(), _faults_told(run):
        _clear_up_after(before, run)
        with secrets_hidden(PermanentError), all_children_end() as end, watch.watching(), keeping(deadline, end):
            yield run


def _recipe_here(recipe_name: str, overrides: BaseModel | None, engine: VllmEngine) -> Recipe:
    """The recipe with what this site and this run change in it; the run has the last word."""
    asked = overrides.model_dump(exclude_none=True) if overrides else {}
    refuse_secrets(asked)
    of_this_site = engine.applied_to(saved_or_default(DataVolume).applied_to(named(recipe_name)))
    recipe = changed(of_this_site, asked)
    refuse_key_arguments(recipe)
    return recipe


def _clear_up_after(before: Holder | None, run: Run) -> None:
    """End what a killed run left: its processes, and its state at the API, which nobody else would change."""
    logger = get_run_logger()
    for sentence in end_orphans(run.data_root / "logs"):
        logger.warning(sentence)
    if before is None or before.flow_run_id == run.id or before.is_alive:
        return
    message = f"its process {before.pid} was killed; {run.name} goes on where it was"
    try:
        if end_killed_run(UUID(before.flow_run_id), message):
            logger.warning("%s was still recorded as running, but %s", before.name, message)
    except Exception as error:  # the record of an old run is no reason to lose this one
        logger.warning("the state of %s, whose process ended, could not be read or set: %s", before.name, error)


@contextmanager
def _faults_told(run: Run) -> Iterator[None]:
    """At the end of a run, say in one line and in a table what went wrong on the way."""
    global _last_faults
    _last_faults = "none"
    try:
        yield
    finally:
        faults = ledger.read(run.log_folder)
        _last_faults = ledger.sentence(faults)
        get_run_logger().info("faults on the way: %s", _last_faults)
        if faults:
            _publish("faults", ledger.table_rows(faults), "Faults on the way")


def _publish(key: str, rows: list[dict[str, str]], description: str) -> None:
    """Publish a table without waiting long for an API that is away: the run is ending, perhaps by Ctrl-C."""
    context = contextvars.copy_context()
    arguments = (artifacts.table, key, rows, description)
    thread = threading.Thread(target=context.run, args=arguments, name=f"{key}-artifact", daemon=True)
    thread.start()
    thread.join(PUBLISH_SECONDS)


def last_faults() -> str | None:
    """The faults of the run that this process had last, in one line; None when none got as far as its data root."""
    return _last_faults
