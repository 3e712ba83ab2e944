"""The run's own eye on its state at the API, so that Cancel works without a worker, or with one that went deaf.

A worker forgets how to cancel after the API was away for half a minute, and a run that was started by hand has
none. So the run looks for itself, tells all work to stop, and has the last word on how it is recorded.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, TerminationSignal
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from flows.run_states import end_run, running_tasks, short_calls
from tasks.system.processes import STOP

POLL_SECONDS = 5.0
LAST_WORD_TRIES = 3
GOES_ON = "what is finished stays on disk, and the next start goes on there."


class StoppedFromOutside(Abort):
    """The run was ended by a person, an automation or a signal; its state at the API is set, if that could be told.

    Prefect's ``Abort`` is its word for "leave, and leave the state alone".
    """

    def __init__(self, message: str, state: State, told: bool = True) -> None:
        super().__init__(message)
        self.state = state
        self.told = told
        """Whether the API knows; otherwise the next run on the data root tells it."""


class StateWatch:
    """Looks at the state of one flow run until the run ends."""

    def __init__(self, flow_run_id: UUID) -> None:
        self._flow_run_id = flow_run_id
        self._found: State | None = None
        self._doing = "between two stages"
        self._ended = threading.Event()
        self._logger = get_run_logger()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every few seconds, from a thread of its own; on a stop from outside, set ``STOP``."""
        thread = threading.Thread(target=self._loop, name="state-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()

    @contextmanager
    def last_word(self) -> Iterator[None]:
        """Record how the run ended, when that was not its own doing; enter it before what ends the children.

        Raises:
            StoppedFromOutside: It was not.
        """
        try:
            yield
        except KeyboardInterrupt:
            raise self._cancelled("stopped by Ctrl-C") from None
        except TerminationSignal:
            # Of a run that has a worker, the worker and Prefect's engine know whether this is a cancellation.
            if runtime.deployment.id is not None:
                raise
            raise self._cancelled("stopped by SIGTERM") from None
        except Exception:
            self._raise_if_stopped_from_outside()
            raise
        else:
            self._raise_if_stopped_from_outside()

    def _loop(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            if self._look():
                self._logger.warning("%s: stopping all work", self._words())
                STOP.set()
                return

    def _look(self) -> bool:
        """Whether the API says that this run is to end; an API that does not answer says nothing."""
        if self._found is not None:
            return True
        try:
            with short_calls() as client:
                state = client.read_flow_run(self._flow_run_id).state
                if state is not None and (state.is_cancelling() or state.is_final()):
                    self._doing = self._stages(client)
                    self._found = state
        except Exception as error:
            self._logger.debug("the run's state could not be read: %s", error)
        return self._found is not None

    def _stages(self, client: SyncPrefectClient) -> str:
        names = sorted(task.name for task in running_tasks(client, self._flow_run_id))
        return f"in {' and '.join(names)}" if names else "between two stages"

    def _words(self) -> str:
        assert self._found is not None
        if self._found.is_cancelling() or self._found.is_cancelled():
            return f"cancelled {self._doing}"
        return f"set to {self._found.name} from outside ({self._found.message}) {self._doing}"

    def _raise_if_stopped_from_outside(self) -> None:
        if not self._look():
            return
        assert self._found is not None
        if self._found.is_cancelling():
            raise self._cancelled(self._words())
        raise StoppedFromOutside(f"{self._words()}; {GOES_ON}", self._found)

    def _cancelled(self, why: str) -> StoppedFromOutside:
        """Set the run to Cancelled, unless the API stays away."""
        message = f"{why}; {GOES_ON}"
        state: State = Cancelled(message=message)
        for _ in range(LAST_WORD_TRIES):
            try:
                end_run(self._flow_run_id, state)
                return StoppedFromOutside(message, state)
            except Exception as error:
                self._logger.warning("the API could not be told that the run is cancelled: %s", error)
                time.sleep(POLL_SECONDS)
        return StoppedFromOutside(message, state, told=False)
