"""A local Prefect server, on SQLite or the database of Prefect's own setting, for people who have none running."""

import atexit
import contextlib
import os
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tasks.errors import BadInput, ChildDied, HeroRunError
from tasks.system.orphans import end_unguarded
from tasks.system.processes import Child, log_tail
from tasks.system.vllm_server import port_is_free

HOST = "127.0.0.1"
DEFAULT_UI_PORT = 4200
START_TIMEOUT_SECONDS = 120.0
LOOK_SECONDS = 5.0
DATABASE_NAME = "prefect.db"
DATABASE_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""Prefect's own setting; the server gets it with the rest of this process's environment."""
ERROR_LINE = re.compile(r"[\w.]+(Error|Exception)\b")
"""How Python prints the last line of a traceback."""


def settings(port: int) -> dict[str, str]:
    """Prefect settings for a server on this port and for its clients."""
    return {
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
    }


def home(environment: Mapping[str, str]) -> Path:
    """Prefect's own folder: database, server log."""
    return Path(environment.get("PREFECT_HOME", "~/.prefect")).expanduser()


def command(port: int) -> list[str]:
    """The command that serves API and UI."""
    return [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]


def answers(port: int) -> bool:
    """Whether a Prefect API answers on this port."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/api/health", timeout=2) as reply:
            return reply.read().strip() == b"true"
    except OSError:
        return False


def ensure_api(port: int) -> str:
    """A Prefect API on this port until this process ends; one that is already running is used and left alone.

    It is kept there: a server that dies in mid-run, or that another run started and stopped at its own end, is
    started again on the same database.

    Returns:
        The UI's address.

    Raises:
        BadInput: Something else listens on the port.
        ChildDied: The server did not start.
    """
    keeper = _Keeper(port)
    keeper.end_orphan()
    if not answers(port):
        if not port_is_free(HOST, port):
            raise BadInput(
                f"Prefect's UI needs port {port}, but something that is not a Prefect server listens there. "
                "Stop it, choose another port (--ui-port N), or point PREFECT_API_URL at a server of yours."
            )
        keeper.serve()
    # Prefect's clients send their last logs and events when the interpreter's threads end, which is before
    # these callbacks: a server stopped any earlier would leave them retrying for minutes.
    atexit.register(keeper.stop)
    threading.Thread(target=keeper.keep, name="local-api", daemon=True).start()
    return f"http://{HOST}:{port}"


class _Keeper:
    """Serves the API, and does it again when nothing answers there any more."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._child: Child | None = None
        self._log_path = home(os.environ) / "server.log"
        self._stopping = threading.Event()

    def end_orphan(self) -> None:
        """End a server that nobody would ever stop, because its run was killed together with its guard."""
        end_unguarded(self._log_path)

    def serve(self) -> None:
        """Start a server and wait until it answers."""
        self._child = child = Child(command(self._port), self._log_path, settings(self._port), grace_seconds=5)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not answers(self._port):
            if child.exit is not None or time.monotonic() > deadline:
                child.stop()
                raise _did_not_start(self._log_path)
            time.sleep(0.2)

    def keep(self) -> None:
        """Look every few seconds whether there is a server, until this process ends."""
        while not self._stopping.wait(LOOK_SECONDS):
            gone = self._child is None or self._child.exit is not None
            if gone and not answers(self._port) and port_is_free(HOST, self._port):
                # It fails when another run was faster: then there is a server, which is all that is wanted.
                with contextlib.suppress(HeroRunError):
                    self.serve()

    def stop(self) -> None:
        """End our server, if there is one."""
        self._stopping.set()
        if self._child is not None:
            self._child.stop()


def _did_not_start(log_path: Path) -> ChildDied:
    """The error for a server that ended, or hung, before it answered: its own reason first."""
    reasons = [line for line in log_tail(log_path, 200, 200_000).splitlines() if ERROR_LINE.match(line)]
    database = os.environ.get(DATABASE_VARIABLE)
    what_to_do = (
        f"It keeps its state in {database} ({DATABASE_VARIABLE}): start that database, correct the address, or unset "
        "the variable to have it in a file. Or name a server of yours (PREFECT_API_URL). "
        if database
        else f"It keeps the history of runs, and nothing else, in {log_path.with_name(DATABASE_NAME)}: if that file is "
        "locked, end who uses it; if it is damaged, move it away. Or name another folder (PREFECT_HOME) or a server "
        "of yours (PREFECT_API_URL). "
    )
    return ChildDied(
        f"the local Prefect server did not start: {reasons[-1] if reasons else 'no reason in its log'}. {what_to_do}"
        f"Its log {log_path} ends:\n{log_tail(log_path)}"
    )
