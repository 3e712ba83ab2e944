"""``hero-run deploy``, ``worker`` and ``unblock``: the hero run at home in somebody's Prefect."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from flows import local_api
from tasks.errors import BadInput, PermanentError

# Prefect reads its settings when it is imported, so not before they are set.
if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def add_commands(commands: Any) -> None:
    """Register the three commands with the subparsers of ``hero-run``."""
    summary = "put the work pool, blocks, deployments, schedules and automations on a Prefect server"
    deploy = commands.add_parser("deploy", help=summary, description=_DEPLOY_TEXT)
    deploy.add_argument(
        "file", nargs="?", type=Path, help="deployments to put there (default: deployments/prefect.yaml)"
    )
    text = "notification block or webhook to be told when a run finishes, fails, stalls or meets its deadline"
    deploy.add_argument("--notify", metavar="TYPE/NAME", help=text)
    deploy.set_defaults(action=_deploy)
    worker = commands.add_parser("worker", help="start this machine's worker", description=_WORKER_TEXT)
    text = "take only runs of this work queue; may be given several times"
    worker.add_argument("--queue", action="append", default=[], metavar="NAME", help=text)
    worker.set_defaults(action=_worker)
    summary = "say which runs hold the work pool, and end those that are dead"
    unblock = commands.add_parser("unblock", help=summary, description=_UNBLOCK_TEXT)
    text = "id of a run that is to be ended although it cannot be known here whether it is dead"
    unblock.add_argument("runs", nargs="*", metavar="RUN", help=text)
    unblock.add_argument("--yes", action="store_true", help="do it; without it nothing is changed")
    unblock.set_defaults(action=_unblock)


_API_TEXT = "Uses the Prefect API of PREFECT_API_URL; without one, the local server of `hero-run ui`."
_DEPLOY_TEXT = (
    "Put on a Prefect server all that a hero run needs: the work pool, the block types, what is in deployments/, its "
    f"schedules (switched off) and automations. Done again, it keeps what was changed in the UI. {_API_TEXT}"
)
_WORKER_TEXT = (
    "Start the process that takes runs from the work pool, one at a time. Before that, runs that a killed worker left "
    "are set to Crashed, and scheduled ones that were missed are given up, so that they do not all start at once. "
    f"Stopping it kills its run, which goes on at its next start. {_API_TEXT}"
)
_UNBLOCK_TEXT = (
    "Say which runs hold the work pool, whether each still has a process on this machine, and what to do about it; "
    f"with --yes do it. {_API_TEXT}"
)


def _deploy(parsed: argparse.Namespace) -> int:
    with _api("hero-run deploy") as client:
        from flows.deploying import deploy
        from flows.deployment_files import DEPLOYMENTS_PATH

        for line in deploy(client, parsed.file or DEPLOYMENTS_PATH, parsed.notify):
            print(line, flush=True)
    return 0


def _worker(parsed: argparse.Namespace) -> int:
    with _api("hero-run worker") as client:
        from flows import worker

        lock = worker.only_worker()
        for line in worker.clear(client):
            print(line, flush=True)
    print(f"worker {worker.worker_name()} of the work pool {worker.POOL} (lock: {lock.name})", flush=True)
    worker.become_worker(parsed.queue)


def _unblock(parsed: argparse.Namespace) -> int:
    with _api("hero-run unblock") as client:
        from flows.worker import unblock

        for line in unblock(client, parsed.runs, parsed.yes):
            print(line, flush=True)
    return 0


@contextmanager
def _api(command: str) -> Iterator["SyncPrefectClient"]:
    """A client of the API that the user set, else of the local one.

    Raises:
        BadInput: No API answers there.
        PermanentError: It refused something; its own reason is in the message.
    """
    for name, value in local_api.settings(local_api.DEFAULT_UI_PORT).items():
        os.environ.setdefault(name, value)
    from flows.run_states import short_calls

    address = os.environ["PREFECT_API_URL"]
    try:
        with short_calls() as client:
            client.api_version()
            yield client
    except httpx.HTTPStatusError as error:
        raise PermanentError(f"{command}: the Prefect API at {address} refused: {_reason(error)}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BadInput(
            f"{command} needs a Prefect API, but {address} does not answer: {error}. Start the local one (make ui) and "
            "leave it running, or name yours in PREFECT_API_URL."
        ) from error


def _reason(error: httpx.HTTPStatusError) -> str:
    try:
        return str(error.response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return str(error).splitlines()[0]
