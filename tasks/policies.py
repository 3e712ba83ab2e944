"""What every stage declares to Prefect: its cache key, its retries, its time limit and its need of disk space."""

import functools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture, as_completed
from prefect.tasks import exponential_backoff

from tasks import plan_artifacts
from tasks.cut_short import StageTask, raise_if_cut_short, require_time, state_of
from tasks.errors import ChildDied, DeadlineReached, GaveUp, HeroRunError, PermanentError, Stopped, TransientError
from tasks.redaction import secrets_hidden
from tasks.system import ledger, timings
from tasks.system.disk import full_disk, require, reserve_bytes
from tasks.system.files import write_atomically
from tasks.system.manifest import Manifest, Stage
from tasks.system.processes import raise_if_stopping
from tasks.system.run import Run, finished, note_use, product_of

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def stage_task(
    name: str,
    *,
    place: Callable[..., Stage],
    need_bytes: Callable[..., int],
    retries: int,
    retry_seconds: float,
    timeout_hours: float,
    made: Callable[..., Manifest | None] | None = None,
    record: Callable[[Stage, Manifest], Any] = product_of,
    begins_late: bool = False,
) -> Callable[[Callable[P, R]], StageTask[P, R]]:
    """Declare a stage.

    Args:
        name: Name of the task and of its run.
        place: From the task's arguments to the stage whose manifest says that the work is done.
        need_bytes: From the task's arguments to what it is about to write under the data root.
        retries: Tries after the first, for transient errors only.
        retry_seconds: First pause; doubled each time, with jitter.
        timeout_hours: Prefect's limit. Work in child processes has closer limits of its own.
        made: From the task's arguments to the manifest of the work if it need not be done; by default the
            stage's manifest, while its products are there as listed.
        record: What the task returns when the work need not be done.
        begins_late: It may begin although the run's deadline is near: it takes seconds.
    """
    look = made or (lambda run, *args, **kwargs: finished(run, place(run, *args, **kwargs)))

    def decorate(body: Callable[P, R]) -> StageTask[P, R]:
        @functools.wraps(body)
        def as_declared(*args: P.args, **kwargs: P.kwargs) -> R:
            run = args[0]
            assert isinstance(run, Run)
            if (manifest := look(*args, **kwargs)) is not None:
                return record(place(*args, **kwargs), manifest)
            try:
                if not begins_late:
                    require_time(run, name)
                reserve = reserve_bytes(run.data_root, run.recipe.reserve_share)
                require(run.data_root, need_bytes(*args, **kwargs), reserve, name)
                raise_if_stopping()  # a pause between two tries cannot be cut short
                timed = _timed(run, name, lambda: place(*args, **kwargs))
                with secrets_hidden(PermanentError), timed, _faults_told(run, name):
                    return body(*args, **kwargs)
            except Stopped as stop:
                cut_short: Any = state_of(run, name, stop)
                # Prefect keeps what a task returns: nobody may find this as the stage's result.
                renew_generation(_generation_path(run, name, place(*args, **kwargs)))
                return cut_short  # which Prefect takes as the task run's state

        return StageTask(
            fn=as_declared,
            name=name,
            task_run_name=name,
            cache_policy=CachePolicy.from_cache_key_fn(_product_key(place, look)),
            persist_result=True,
            result_serializer="json",
            retries=retries,
            retry_delay_seconds=exponential_backoff(retry_seconds),
            retry_jitter_factor=0.5,
            retry_condition_fn=is_transient,
            timeout_seconds=timeout_hours * 3600,
        )

    return decorate


@contextmanager
def _faults_told(run: Run, name: str) -> Iterator[None]:
    """Name the faults of a stage, and tell those that another try may help from those that none can.

    Near the run's deadline there is no other try: the next start is one.
    """
    try:
        yield
    except TransientError as error:
        raise_if_stopping()  # then the child died because it was told to
        told = _told(run, name, error)
        if isinstance(told, TransientError) and run.deadline.of_stages.is_winding_down:
            raise DeadlineReached(f"{name} not finished") from error
        raise told from error
    except OSError as error:
        if (full := full_disk(error, run.data_root)) is not None:
            raise full from error
        raise


@contextmanager
def _timed(run: Run, name: str, place: Callable[[], Stage]) -> Iterator[None]:
    """Note how long a stage took and what it wrote, whatever became of it, and show that beside the plan."""
    began, written_bytes = time.monotonic(), 0
    try:
        yield
        made_now = place().manifest()
        written_bytes = made_now.size_bytes if made_now is not None else 0
    finally:
        timings.note(run, name, "stage", time.monotonic() - began, written_bytes=written_bytes)
    plan_artifacts.publish_progress(run)


def is_transient(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether another try may help: never after a permanent error, a bug, or a stop."""
    return isinstance(state.result(raise_on_failure=False), TransientError)


def _told(run: Run, name: str, error: TransientError) -> HeroRunError:
    """Note an error; one that no other try can help becomes permanent.

    A process that fails twice in a row in the same way, at the same point, would do so a third time, and the
    third model load costs as much as the first. The network is another matter.
    """
    earlier = [known for known in ledger.read(run.log_folder) if known.stage == name]
    fault = note_fault(run, name, error)
    if isinstance(error, ChildDied) and earlier and earlier[-1].signature == fault.signature:
        return GaveUp(f"the same failure twice in a row, so {name} is not tried again. {error}")
    return error


def note_fault(run: Run, name: str, error: HeroRunError) -> ledger.Fault:
    """Put an error into the run's ledger."""
    fault = ledger.fault_of(name, error)
    ledger.note(run.log_folder, fault)
    return fault


def _product_key(
    place: Callable[..., Stage], look: Callable[..., Manifest | None]
) -> Callable[[TaskRunContext, dict[str, Any]], str]:
    """A cache key that hits exactly while the products are on disk.

    Prefect looks a key up before the task runs and stores the result under it afterwards, so the key must not
    depend on whether the products are there. It names the stage's digest and a generation, kept in a small file:
    when the manifest does not hold, the generation is renewed, and whatever was stored before is never found again.
    """

    def key(context: TaskRunContext, inputs: dict[str, Any]) -> str:
        stage, run = place(**inputs), inputs["run"]
        note_use(run, stage)
        path = _generation_path(run, context.task.name, stage)
        if look(**inputs) is None or not path.exists():
            renew_generation(path)
        return f"{context.task.name}-{stage.digest}-{path.read_text()}"

    return key


def _generation_path(run: Run, task_name: str, stage: Stage) -> Path:
    return run.data_root / "generations" / f"{task_name}-{stage.digest}"


def renew_generation(path: Path) -> None:
    """Make every result that was cached under this generation unreachable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, uuid.uuid4().hex[:8])


def both(first: PrefectFuture[R], second: PrefectFuture[S]) -> tuple[R, S]:
    """The results of two stages that run side by side; the first failure of either ends the wait.

    A deadline that cuts one of them short does not: the other has until then, too.

    Raises:
        DeadlineReached: It cut short at least one of them.
    """
    futures: list[PrefectFuture[Any]] = [first, second]
    for future in as_completed(futures):
        future.result()
    for future in futures:
        raise_if_cut_short(future.state)
    return first.result(), second.result()
