"""The runs that hold places in a work pool, and whether there is still a process behind each; and those that it missed.

A run whose process and worker were killed together stays Running, or Pending, for ever, and a pool of one run at a time
is blocked by it. That it is dead is proved, not guessed: it ran on this machine, and no process here is its own.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.states import Cancelled

from flows.automations import read_automations
from flows.run_states import end_killed_run

HOLDING = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""In the environment of a run's process and of what it starts."""
WORKER_LABEL = "prefect.worker.name"
"""On a run's record: the worker that took it."""
ENGINE = b"prefect.engine"
"""In the command line of a run's own process; what it starts, such as a guard with vLLM below it, has another."""
SCHEDULED_TAG = "auto-scheduled"
MISSED = "hero-run-missed"
"""The automation that gives up scheduled runs, and says after how long."""

Life = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class HoldingRun:
    """A run that holds a place in a work pool."""

    id: UUID
    name: str
    state: str
    life: Life
    why: str
    """How that is known."""

    def end(self) -> bool:
        """Give the run its last state: Crashed, or Cancelled when that was asked; whether it had none yet."""
        return end_killed_run(self.id, f"{self.why}; the next start goes on where it was")


def worker_name() -> str:
    """The name of this machine's worker: from a run's record it tells which machine the run is on."""
    return socket.gethostname()


def holding_runs(client: SyncPrefectClient, pool: str) -> list[HoldingRun]:
    """The runs that hold places in a pool."""
    found = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=HOLDING))),
        work_pool_filter=_only(pool),
    )
    return [HoldingRun(run.id, run.name, run.state_name or "", *_life(client, run, pool)) for run in found]


def _only(pool: str) -> WorkPoolFilter:
    return WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))


def _life(client: SyncPrefectClient, run: FlowRun, pool: str) -> tuple[Life, str]:
    own, hidden = processes_of(run.id)
    if own:
        return "alive", f"process {own[0]} of this machine is at work on it"
    if hidden:
        return "unknown", f"process {hidden[0]} of this machine may be at work on it, but belongs to another user"
    worker = run.labels.get(WORKER_LABEL)
    if worker == worker_name():
        return "dead", "it was on this machine, and its process was killed"
    if worker is not None:
        return "unknown", f"it is on another machine, with the worker {worker!r}"
    online = [found.name for found in client.read_workers_for_work_pool(pool) if found.status == WorkerStatus.ONLINE]
    if others := [name for name in online if name != worker_name()]:
        return "unknown", f"it has no process yet, and may be in the hands of the worker {' or '.join(others)}"
    return "dead", "its worker was killed before it had a process"


def processes_of(flow_run_id: UUID) -> tuple[list[int], list[int]]:
    """This machine's processes of a run, and those that may be its own, but are hidden: another user has them."""
    mark, own, hidden = f"{RUN_VARIABLE}={flow_run_id}".encode(), [], []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if ENGINE in (entry / "cmdline").read_bytes():
                own += [int(entry.name)] if mark in (entry / "environ").read_bytes().split(b"\0") else []
        except PermissionError:
            hidden.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return sorted(own), sorted(hidden)


def end_dead(client: SyncPrefectClient, pool: str) -> Iterator[str]:
    """End the runs that hold places in a pool and are dead; yields a line for each that holds one."""
    for run in holding_runs(client, pool):
        if run.life == "dead" and run.end():
            yield f"ended {run.name}, which was {run.state}: {run.why}"
        elif run.life != "dead":
            yield f"left {run.name} {run.state}: {run.why}"


def give_up_missed(client: SyncPrefectClient, pool: str) -> Iterator[str]:
    """Cancel the scheduled runs of a pool that should have started too long ago; yields a line for each."""
    (late,) = [timedelta(seconds=entry["trigger"]["within"]) for entry in read_automations() if entry["name"] == MISSED]
    missed = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            tags=FlowRunFilterTags(all_=[SCHEDULED_TAG]),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime.model_validate(
                {"before_": datetime.now(UTC) - late}
            ),
        ),
        work_pool_filter=_only(pool),
    )
    for run in missed:
        if run.run_count == 0:
            message = "no worker was there at its time; the next scheduled run goes on where the last one was"
            client.set_flow_run_state(run.id, Cancelled(message=message))
            yield f"gave up {run.name}, scheduled for {run.expected_start_time:%Y-%m-%d %H:%M %Z}: {message}"
