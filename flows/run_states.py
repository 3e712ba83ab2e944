"""What the Prefect API knows of flow runs, asked and told in short calls that never hang on an API that is away."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Crashed

from tasks.errors import BadInput

CALL_TIMEOUT_SECONDS = 10.0
UNFINISHED_TASKS = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


@contextmanager
def short_calls() -> Iterator[SyncPrefectClient]:
    """A client of its own: it gives up after seconds, where the flow's own waits for half an hour."""
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings={"timeout": CALL_TIMEOUT_SECONDS}) as client,
    ):
        yield client


def require_api() -> None:
    """Ask the API that this process uses for an answer, before anything is started.

    Raises:
        BadInput: It gives none, or not the right one.
    """
    address = PREFECT_API_URL.value()
    try:
        with short_calls() as client:
            client.api_version()
    except Exception as error:  # whatever it is, it is what keeps the run from being recorded
        reason = (str(error) or repr(error)).splitlines()[0].rstrip(".")
        raise BadInput(
            f"the run needs a Prefect API, but {address} (PREFECT_API_URL) did not answer as one: {reason}. "
            "Start it (prefect server start), correct the address, or unset PREFECT_API_URL to have a local server "
            "for the time of the run. Nothing was started."
        ) from error


def running_tasks(client: SyncPrefectClient, flow_run_id: UUID) -> list[TaskRun]:
    """Task runs of a flow run that have not ended, as far as the API knows."""
    return client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=UNFINISHED_TASKS))),
    )


def end_run(flow_run_id: UUID, state: State) -> None:
    """Give a flow run, and those of its tasks that have not ended, this last state.

    By force, because the orchestration's rules are about what may come next in a live run. Nothing of this one is
    left: call it then only.
    """
    with short_calls() as client:
        client.set_flow_run_state(flow_run_id, state, force=True)
        for task_run in running_tasks(client, flow_run_id):
            client.set_task_run_state(task_run.id, type(state)(type=state.type, message=state.message), force=True)


def end_killed_run(flow_run_id: UUID, message: str) -> bool:
    """End a run whose process was killed, unless it has ended at the API: Crashed, or Cancelled when that was asked.

    Returns:
        Whether there was such a run to end.
    """
    with short_calls() as client:
        try:
            state = client.read_flow_run(flow_run_id).state
        except ObjectNotFound:  # it ran at another API
            return False
    if state is None or state.is_final():
        return False
    end_run(flow_run_id, Cancelled(message=message) if state.is_cancelling() else Crashed(message=message))
    return True
