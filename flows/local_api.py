"""A local Prefect server (SQLite) for people who have none running."""

import atexit
import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tasks.errors import BadInput, ChildDied
from tasks.system.processes import Child, log_tail
from tasks.system.vllm_server import port_is_free

HOST = "127.0.0.1"
DEFAULT_UI_PORT = 4200
START_TIMEOUT_SECONDS = 120.0
DATABASE_NAME = "prefect.db"
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

    Returns:
        The UI's address.

    Raises:
        BadInput: Something else listens on the port.
        ChildDied: The server did not start.
    """
    address = f"http://{HOST}:{port}"
    if answers(port):
        return address
    if not port_is_free(HOST, port):
        raise BadInput(
            f"Prefect's UI needs port {port}, but something that is not a Prefect server listens there. "
            "Stop it, choose another port (--ui-port N), or point PREFECT_API_URL at a server of yours."
        )
    log_path = home(os.environ) / "server.log"
    child = Child(command(port), log_path, settings(port), grace_seconds=5)
    # Prefect's clients send their last logs and events when the interpreter's threads end, which is before
    # these callbacks: a server stopped any earlier would leave them retrying for minutes.
    atexit.register(child.stop)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not answers(port):
        if child.exit is not None or time.monotonic() > deadline:
            raise _did_not_start(log_path)
        time.sleep(0.2)
    return address


def _did_not_start(log_path: Path) -> ChildDied:
    """The error for a server that ended, or hung, before it answered: its own reason first."""
    reasons = [line for line in log_tail(log_path, 200, 200_000).splitlines() if ERROR_LINE.match(line)]
    return ChildDied(
        f"the local Prefect server did not start: {reasons[-1] if reasons else 'no reason in its log'}. "
        f"It keeps the history of runs, and nothing else, in {log_path.with_name(DATABASE_NAME)}: if that file is "
        "locked, end who uses it; if it is damaged, move it away. Or name another folder (PREFECT_HOME) or a server "
        f"of yours (PREFECT_API_URL). Its log {log_path} ends:\n{log_tail(log_path)}"
    )
