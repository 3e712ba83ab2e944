"""The Prefect API: away in mid-run, down or broken at the start; and what the run says at its end."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.system import guard
from tests.conftest import PROJECT
from tests.flows.live import HeroRun, PrefectServer, free_port, wait_until

TINY_TASKS = {"server-load", "drafter-download", "inference", "training"}


@pytest.fixture(scope="module")
def completed(prefect_server, tmp_path_factory):
    """A run in which inference failed once."""
    environment = {**prefect_server.environment, "TINY_FAILS_ONCE": "inference"}
    hero = HeroRun(tmp_path_factory.mktemp("completed") / "data", environment, 3)
    assert hero.ended() == 0, hero.said()
    return hero, prefect_server.run_on(hero.data_root)


@pytest.mark.fault("one-task-per-stage")
def test_a_run_has_one_task_run_a_stage_whatever_it_reports(completed, prefect_server):
    _, record = completed
    tasks = prefect_server.post("/task_runs/filter", flow_runs={"id": {"any_": [record["id"]]}})
    assert sorted(task["name"] for task in tasks) == sorted(TINY_TASKS)


@pytest.mark.fault("one-task-per-stage")
def test_progress_is_one_artifact_a_stage_that_is_updated(completed, prefect_server):
    _, record = completed
    found = prefect_server.post("/artifacts/filter", artifacts={"flow_run_id": {"any_": [record["id"]]}})
    bars = [artifact["key"] for artifact in found if artifact["type"] == "progress"]
    assert sorted(bars) == sorted(f"{name}-progress" for name in TINY_TASKS)


def test_the_faults_on_the_way_are_told_above_the_verdict(completed):
    hero, _ = completed
    lines = hero.said().splitlines()
    verdict = next(i for i, line in enumerate(lines) if line.startswith("verdict: "))
    assert lines.index("faults on the way: 1 x ServerGone in inference") < verdict


def test_the_faults_on_the_way_are_a_table_in_the_ui(completed, prefect_server):
    _, record = completed
    found = prefect_server.post("/artifacts/filter", artifacts={"flow_run_id": {"any_": [record["id"]]}})
    (table,) = [artifact["data"] for artifact in found if artifact["key"] == "faults"]
    assert '"stage": "inference", "fault": "ServerGone", "times": "1"' in table


def hero_run(tmp_path: Path, **environment: str) -> tuple[int, str]:
    """`hero-run run` as users call it: exit code and what it said."""
    server = PrefectServer(tmp_path)
    bare = {name: value for name, value in server.environment.items() if name != "PREFECT_API_URL"}
    command = [sys.executable, "-m", "flows.cli", "run", "smollm2-cpu", "--data-root", str(tmp_path / "data")]
    command += ["--ui-port", str(server.port)]
    done = subprocess.run(
        command, env={**bare, **environment}, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.fault("api-down-at-start")
def test_an_api_that_is_down_at_the_start_is_one_message_and_nothing_is_started(tmp_path):
    address = f"http://127.0.0.1:{free_port()}/api"
    code, said = hero_run(tmp_path, PREFECT_API_URL=address)
    assert code == 1 and not (tmp_path / "data").exists()
    assert said == (
        f"hero-run: the run needs a Prefect API, but {address} (PREFECT_API_URL) did not answer as one: [Errno 111] "
        "Connection refused. Start it (prefect server start), correct the address, or unset PREFECT_API_URL to have "
        "a local server for the time of the run. Nothing was started.\n"
    )


@pytest.mark.fault("api-down-at-start")
def test_an_address_that_is_no_prefect_api_is_told(tmp_path, prefect_server):
    code, said = hero_run(tmp_path, PREFECT_API_URL=prefect_server.url.removesuffix("/api"))
    assert code == 1 and len(said.splitlines()) == 1
    assert "(PREFECT_API_URL) did not answer as one: " in said


@pytest.mark.slow_fault
@pytest.mark.parametrize("fault", ["damaged", "locked"])
@pytest.mark.fault("api-down-at-start")
def test_a_database_that_a_local_server_cannot_use_is_told_with_its_reason_and_the_logs_end(tmp_path, fault):
    database = tmp_path / "prefect" / "prefect.db"
    database.parent.mkdir()
    with sqlite3.connect(database, isolation_level=None) as other:
        if fault == "locked":
            other.execute("CREATE TABLE anything (a)")
            other.execute("BEGIN EXCLUSIVE")
        else:
            database.write_text("this is no database, " * 100)
        code, said = hero_run(tmp_path, PREFECT_HOME=str(database.parent))
    reason = {"damaged": "file is not a database", "locked": "database is locked"}[fault]
    assert code == 1, said
    assert re.match(rf"hero-run: the local Prefect server did not start: .*{reason}\. ", said), said
    assert f"in {database}: if that file is locked" in said and "server.log ends:\n" in said


@pytest.mark.slow_fault
@pytest.mark.fault("api-away")
def test_an_api_that_is_killed_in_mid_stage_and_comes_back_a_minute_later_ends_nothing(own_server, start_run, happened):
    """Over the end of a stage, the begin of the next and the end of the run: all of them while it is away."""
    hero = start_run(own_server, 12)
    hero.wait_for("inference")
    record = own_server.run_on(hero.data_root)
    own_server.kill()
    own_server.stay_away(55)
    assert (hero.data_root / "training.begun").exists(), "work stood still while the API was away"
    own_server.start()
    assert hero.ended() == 0, hero.said()
    assert own_server.run()["id"] == record["id"] and own_server.run()["state_type"] == "COMPLETED"
    logs = own_server.post("/logs/filter", logs={"flow_run_id": {"any_": [record["id"]]}})
    assert any("faults on the way: none" in line["message"] for line in logs)
    happened("SIGKILL of the API in mid-stage, back after 55 s: a stage ended and one began meanwhile; Completed")


@pytest.mark.slow_fault
@pytest.mark.fault("api-away")
def test_an_api_that_is_away_in_the_middle_of_a_stage_sees_its_progress_afterwards(own_server, start_run):
    hero = start_run(own_server, 70)
    hero.wait_for("server-load")
    record = own_server.run_on(hero.data_root)
    own_server.kill()
    own_server.stay_away(20)
    own_server.start()

    def progress() -> float:
        found = own_server.post("/artifacts/filter", artifacts={"flow_run_id": {"any_": [record["id"]]}})
        return max((artifact["data"] for artifact in found if artifact["key"] == "server-load-progress"), default=0.0)

    wait_until(lambda: progress() > 30, "progress that was made while the API was away")
    assert hero.process.poll() is None, hero.said()


@pytest.mark.slow_fault
@pytest.mark.fault("api-away")
def test_ctrl_c_ends_a_run_also_while_the_api_is_away(own_server, start_run):
    hero = start_run(own_server, 300)
    hero.wait_for("server-load")
    own_server.kill()
    hero.process.send_signal(signal.SIGINT)
    # With as many tries as a run has, Prefect's own farewell would take half an hour.
    assert hero.ended(120) == 130
    assert "hero-run: stopped by Ctrl-C; what is finished stays on disk" in hero.said() and hero.left() == []


@pytest.mark.slow_fault
@pytest.mark.fault("api-away")
def test_an_api_that_never_comes_back_ends_the_run_with_one_message(own_server, start_run):
    hero = start_run(own_server, 8, PREFECT_CLIENT_MAX_RETRIES="2")
    hero.wait_for("inference")
    own_server.kill()
    assert hero.ended() == 1
    assert hero.said().splitlines()[-1] == (
        "hero-run: the Prefect API stayed away for so long that the run was given up; what is finished stays on disk. "
        f"Start the API, and then the run again ({own_server.url}: [Errno 111] Connection refused)"
    )


@pytest.mark.slow_fault
@pytest.mark.fault("api-away")
def test_a_local_server_that_is_killed_in_mid_run_is_started_again(tmp_path):
    own = PrefectServer(tmp_path)
    del own.environment["PREFECT_API_URL"]
    hero = HeroRun(tmp_path / "data", own.environment, 15, "--ui-port", str(own.port))
    try:
        hero.wait_for("inference")
        served = [pid for pid in guard.descendants(hero.process.pid) if is_server(pid)]
        assert served
        for pid in served:
            os.kill(pid, signal.SIGKILL)
        assert hero.ended() == 0, hero.said()
    finally:
        hero.process.kill()
        hero.process.wait()


def is_server(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"uvicorn" in words or words[1:5] == [b"-m", b"prefect", b"server", b"start"]
