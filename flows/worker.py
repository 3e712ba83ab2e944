"""``hero-run worker`` and ``hero-run unblock``: the worker of this machine, and what holds its work pool."""

import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, TextIO
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import WorkerStatus, WorkPool
from prefect.exceptions import ObjectNotFound

from flows import local_api
from flows.deploying import put_pool
from flows.deployment_files import read_pools
from flows.pool_runs import end_dead, give_up_missed, holding_runs, worker_name
from tasks.errors import BadInput, PermanentError

POOL = "hero-run"
RETRIES = {"PREFECT_CLIENT_MAX_RETRIES": "7"}
"""A worker gives up, and kills its run, after twelve calls in a row that failed: with these, after an hour without an
API. More would make it slow to notice that there is one again."""


def clear(client: SyncPrefectClient) -> Iterator[str]:
    """Take out of the way what would block the pool, or start all at once; yields a line for each, and for the pool."""
    yield from put_pool(client, read_pools()[POOL])
    yield from end_dead(client, POOL)
    yield from give_up_missed(client, POOL)


def _pool(client: SyncPrefectClient) -> WorkPool:
    try:
        return client.read_work_pool(POOL)
    except ObjectNotFound:
        raise BadInput(
            f"there is no work pool {POOL!r} at {client.api_url}: put it there first (make deploy, or hero-run deploy)."
        ) from None


def only_worker() -> TextIO:
    """The lock of this machine's worker, which is held as long as the file is open, whatever the process becomes.

    Raises:
        PermanentError: There is one at work.
    """
    path = local_api.home(os.environ) / f"worker-{POOL}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise PermanentError(
            f"process {lock.read()} is this machine's worker already (lock: {path}). Leave it alone, or stop it first: "
            "that also kills its run, which goes on at its next start."
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    os.set_inheritable(lock.fileno(), True)
    return lock


def become_worker(queues: Sequence[str]) -> NoReturn:
    """Turn this process into Prefect's worker."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"]
    command += ["--name", worker_name(), *(word for queue in queues for word in ("--work-queue", queue))]
    # Scripts start background processes with SIGINT ignored; Prefect's worker hands SIGTERM on as SIGINT to itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execve(command[0], command, {**RETRIES, **os.environ})


def unblock(client: SyncPrefectClient, runs: Sequence[str], is_sure: bool) -> Iterator[str]:
    """Say which runs hold the pool and what to do; do it where it is sure.

    Args:
        client: Of the API.
        runs: Ids of runs that are to be ended although nobody knows of their processes.
        is_sure: Whether to do it.

    Raises:
        BadInput: An id is none of a run that holds a place.
    """
    pool, holding = _pool(client), holding_runs(client, POOL)
    if unknown := set(runs) - {str(run.id) for run in holding}:
        raise BadInput(f"{', '.join(sorted(unknown))} is no run that holds a place in the work pool {POOL}.")
    for run in holding:
        yield f"{run.name} is {run.state} ({run.id}): {run.why}"
        may_end = run.life == "dead" or (run.life == "unknown" and str(run.id) in runs)
        if may_end and is_sure:
            yield "    ended" if run.end() else "    it has ended by itself"
        else:
            yield f"    {_advice(run.life, run.id)}"
    if not holding:
        yield f"no run holds a place in the work pool {POOL}"
    yield from _why_else_nothing_starts(client, pool)


def _advice(life: str, run_id: UUID) -> str:
    return {
        "alive": f"leave it, or cancel it: prefect flow-run cancel {run_id}",
        "dead": "end it, so that the pool is free: hero-run unblock --yes",
        "unknown": f"if you know that it is dead: hero-run unblock {run_id} --yes",
    }[life]


def _why_else_nothing_starts(client: SyncPrefectClient, pool: WorkPool) -> Iterator[str]:
    if pool.is_paused:
        yield f"the pool is paused: prefect work-pool resume {POOL}"
    if not any(worker.status == WorkerStatus.ONLINE for worker in client.read_workers_for_work_pool(POOL)):
        yield "no worker is at work: make worker"
