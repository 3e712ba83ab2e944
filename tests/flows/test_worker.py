"""`hero-run worker` and `hero-run unblock` on a real server: what a killed worker leaves, and what is done about it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import worker
from flows.deploying import deploy
from flows.deployment_files import DEPLOYMENTS_PATH
from tasks.errors import BadInput, PermanentError
from tests.conftest import PROJECT
from tests.flows.conftest import serving
from tests.flows.live import PrefectServer, wait_until

DEPLOYMENT = "/deployments/name/hero-run/hero-run"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PrefectServer]:
    yield from serving(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def client(server, tmp_path_factory) -> Iterator[SyncPrefectClient]:
    """Of a server on which the tiny flow is deployed in the place of the hero run."""
    content = yaml.safe_load(DEPLOYMENTS_PATH.read_text())
    content["deployments"][0]["entrypoint"] = "tests.flows.tiny_flow.hero_run"
    path = tmp_path_factory.mktemp("deployments") / "prefect.yaml"
    path.write_text(yaml.safe_dump(content))
    with temporary_settings({PREFECT_API_URL: server.url}), get_client(sync_client=True) as client:
        list(deploy(client, path, None))
        yield client


@pytest.fixture
def new_run(server, client) -> Iterator[Callable[..., str]]:
    """Asks for a run of the deployment; returns its id. Whatever became of it, it holds no place afterwards."""
    made = []

    def make(**fields: object) -> str:
        deployment_id = server.get(DEPLOYMENT)["id"]
        made.append(server.post(f"/deployments/{deployment_id}/create_flow_run", **fields)["id"])
        return made[-1]

    yield make
    for run_id in made:
        server.post(f"/flow_runs/{run_id}/set_state", state={"type": "CANCELLED"}, force=True)


def state_of(server: PrefectServer, run_id: str) -> tuple[str, str]:
    state = server.get(f"/flow_runs/{run_id}")["state"]
    return state["type"], state["message"]


@pytest.mark.fault("dead-worker")
def test_a_run_whose_worker_was_killed_before_it_had_a_process_is_ended(new_run, client, server):
    run_id = new_run(name="pending-1", state={"type": "PENDING"})
    (_, line) = worker.clear(client)
    assert line == "ended pending-1, which was Pending: its worker was killed before it had a process"
    said = "its worker was killed before it had a process; the next start goes on where it was"
    assert state_of(server, run_id) == ("CRASHED", said)


@pytest.fixture
def elsewhere(new_run, server) -> str:
    """A run that another machine's worker took."""
    run_id = new_run(name="elsewhere-1", state={"type": "PENDING"})
    server.send("PATCH", f"/flow_runs/{run_id}/labels", {"prefect.worker.name": "another"})
    server.post(f"/flow_runs/{run_id}/set_state", state={"type": "RUNNING"})
    return run_id


def test_a_run_on_another_machine_is_left_alone(elsewhere, client, server):
    assert list(worker.clear(client)) == [
        "left elsewhere-1 Running: it is on another machine, with the worker 'another'"
    ]
    assert state_of(server, elsewhere)[0] == "RUNNING"


def test_unblock_changes_nothing_unless_it_is_told_to(elsewhere, client, server):
    said = list(worker.unblock(client, [elsewhere], is_sure=False))
    assert said[:2] == [
        f"elsewhere-1 is Running ({elsewhere}): it is on another machine, with the worker 'another'",
        f"    if you know that it is dead: hero-run unblock {elsewhere} --yes",
    ]
    assert state_of(server, elsewhere)[0] == "RUNNING"


def test_unblock_ends_a_run_on_another_machine_only_when_it_is_named(elsewhere, client, server):
    list(worker.unblock(client, [], is_sure=True))
    assert state_of(server, elsewhere)[0] == "RUNNING"
    assert "    ended" in list(worker.unblock(client, [elsewhere], is_sure=True))
    assert state_of(server, elsewhere)[0] == "CRASHED"


def test_unblock_refuses_a_run_that_holds_no_place(client):
    with pytest.raises(BadInput, match="nothing-of-the-kind is no run that holds a place"):
        list(worker.unblock(client, ["nothing-of-the-kind"], is_sure=True))


def test_unblock_says_when_nothing_holds_the_pool_and_no_worker_is_there(client):
    assert list(worker.unblock(client, [], is_sure=False)) == [
        "no run holds a place in the work pool hero-run",
        "no worker is at work: make worker",
    ]


@pytest.mark.fault("missed-runs")
def test_a_scheduled_run_that_is_hours_late_is_given_up_and_others_wait(new_run, client, server):
    three_hours_ago = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    late = {"type": "SCHEDULED", "state_details": {"scheduled_time": three_hours_ago}}
    missed = new_run(name="missed-1", state=late, tags=["auto-scheduled"])
    asked = new_run(name="asked-1", state=late)
    tonight = new_run(name="tonight-1", tags=["auto-scheduled"])
    (_, line) = worker.clear(client)
    assert line.startswith("gave up missed-1, scheduled for ")
    assert [state_of(server, run_id)[0] for run_id in (missed, asked, tonight)] == [
        "CANCELLED",
        "SCHEDULED",
        "SCHEDULED",
    ]


def test_there_is_one_worker_on_a_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with worker.only_worker(), pytest.raises(PermanentError, match=f"process {os.getpid()} is this machine's worker"):
        worker.only_worker()


@pytest.fixture
def empty(own_server) -> Iterator[SyncPrefectClient]:
    """Of a server on which nothing is deployed."""
    with temporary_settings({PREFECT_API_URL: own_server.url}), get_client(sync_client=True) as client:
        yield client


def test_without_a_pool_unblock_says_what_is_missing_and_the_worker_makes_it(empty):
    with pytest.raises(BadInput, match=r"there is no work pool 'hero-run' at http.*make deploy"):
        list(worker.unblock(empty, [], is_sure=False))
    assert list(worker.clear(empty)) == ["created   work pool hero-run (process, 1 run at a time)"]


class Worker:
    """`hero-run worker` as a process of its own."""

    def __init__(self, server: PrefectServer, folder: Path, seconds: float, before=None) -> None:
        self.output = folder / f"worker-{len(list(folder.iterdir()))}.txt"
        environment = {**server.environment, "PYTHONPATH": str(PROJECT), "TINY_STAGE_SECONDS": str(seconds)}
        environment["PREFECT_WORKER_QUERY_SECONDS"] = "1"
        command = [sys.executable, "-m", "flows.cli", "worker"]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True, preexec_fn=before
            )
        wait_until(lambda: "started!" in self.said(), "a worker")

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_worker(server, client, tmp_path) -> Iterator[Callable[..., Worker]]:
    started = []

    def start(seconds: float = 300, before=None) -> Worker:
        started.append(Worker(server, tmp_path, seconds, before))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


def pid_at_work(data_root: Path) -> int:
    """The process of the run whose first stage is at work on a data root."""
    mark = data_root / "server-load.begun"
    return int(wait_until(lambda: mark.exists() and mark.read_text(), f"a run on {data_root}"))


def left_of(data_root: Path) -> list[str]:
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line.decode(errors="replace") for line in lines if str(data_root).encode() in line]


def on(data_root: Path) -> dict:
    return {"parameters": {"recipe": "smollm2-cpu", "overrides": {"data_root": str(data_root)}}}


@pytest.mark.slow_fault
@pytest.mark.fault("dead-worker")
def test_after_a_worker_was_killed_with_its_run_the_next_one_frees_the_pool(
    start_worker, new_run, server, client, tmp_path, happened
):
    first = start_worker()
    killed, waiting = new_run(name="killed-1", **on(tmp_path / "killed")), new_run(**on(tmp_path / "waiting"))
    pid = pid_at_work(tmp_path / "killed")
    first.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not left_of(tmp_path / "killed"), "an end of what the run started", 45)
    name = server.get(f"/flow_runs/{killed}")["name"]
    assert list(worker.unblock(client, [], is_sure=False))[:2] == [
        f"{name} is Running ({killed}): it was on this machine, and its process was killed",
        "    end it, so that the pool is free: hero-run unblock --yes",
    ]
    second = start_worker()
    assert f"ended {name}, which was Running: it was on this machine, and its process was killed" in second.said()
    assert state_of(server, killed)[0] == "CRASHED"
    os.kill(pid_at_work(tmp_path / "waiting"), signal.SIGKILL)
    wait_until(lambda: state_of(server, waiting)[0] == "CRASHED", "an end of the second run")
    happened("kill -9 of worker and run: nothing of them is left, and the next worker starts the run that waited")


@pytest.mark.slow_fault
@pytest.mark.fault("dead-worker")
def test_a_run_that_outlived_its_worker_is_left_at_work_and_can_be_cancelled(
    start_worker, new_run, server, client, tmp_path
):
    first = start_worker()
    run_id = new_run(**on(tmp_path / "data"))
    pid = pid_at_work(tmp_path / "data")
    first.kill()
    said = list(worker.unblock(client, [run_id], is_sure=True))
    assert said[0].endswith(f"process {pid} of this machine is at work on it")
    assert said[1] == f"    leave it, or cancel it: prefect flow-run cancel {run_id}"
    assert state_of(server, run_id)[0] == "RUNNING"
    server.cancel(run_id)
    wait_until(lambda: state_of(server, run_id)[0] == "CANCELLED", "an end of the run")
    wait_until(lambda: not left_of(tmp_path / "data"), "an end of what the run started", 45)


@pytest.mark.slow_fault
@pytest.mark.fault("api-away")
def test_worker_and_run_outlive_an_api_that_is_away_and_the_run_can_be_cancelled_then(
    start_worker, new_run, server, tmp_path, happened
):
    running = start_worker()
    run_id = new_run(**on(tmp_path / "data"))
    pid_at_work(tmp_path / "data")
    server.kill()
    server.stay_away(90)
    server.start()
    assert running.process.poll() is None, running.said()
    assert state_of(server, run_id)[0] == "RUNNING"
    server.cancel(run_id)
    wait_until(lambda: state_of(server, run_id)[0] == "CANCELLED", "an end of the run")
    wait_until(lambda: not left_of(tmp_path / "data"), "an end of what the run started", 45)
    happened("an API that was away for 90 s ended neither worker nor run, and Cancel worked afterwards")


@pytest.mark.slow_fault
@pytest.mark.fault("dead-worker")
def test_a_worker_that_a_script_started_in_the_background_heeds_sigterm(start_worker):
    background = start_worker(before=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    background.process.terminate()
    assert background.process.wait(60) == 0, background.said()
