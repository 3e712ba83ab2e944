"""Cancelled, stopped or ended from outside: everything ends within seconds, and the API says how it was."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.flows.live import PrefectServer, wait_until

LONG = 300.0
"""Stages of this length end only when they are stopped."""


@pytest.fixture
def cancelled(prefect_server, start_run):
    """A run that was cancelled at the API while no worker was there; its record and what it left."""
    hero = start_run(prefect_server, LONG)
    hero.wait_for("server-load")
    flow_run_id = prefect_server.run_on(hero.data_root)["id"]
    tasks = ("server-load", "drafter-download")
    wait_until(lambda: list(prefect_server.task_states(flow_run_id).values()) == ["RUNNING"] * 2, f"{tasks} in the UI")
    prefect_server.cancel(flow_run_id)
    return hero, hero.ended(60), prefect_server.run_on(hero.data_root)


@pytest.mark.fault("cancelled-in-any-stage")
def test_a_run_without_a_worker_ends_when_it_is_cancelled_and_says_what_it_was_at(cancelled):
    hero, code, record = cancelled
    assert (code, record["state_type"]) == (130, "CANCELLED"), hero.said()
    words = "cancelled in drafter-download and server-load; what is finished stays on disk"
    assert record["state"]["message"].startswith(words) and f"hero-run: {words}" in hero.said()
    assert hero.left() == [] and "Traceback" not in hero.said()


@pytest.mark.slow_fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.fault("cancelled-in-any-stage")
def test_a_signal_ends_a_run_and_all_that_it_started(prefect_server, start_run, number):
    hero = start_run(prefect_server, LONG)
    hero.wait_for("server-load")
    hero.process.send_signal(number)
    assert hero.ended(60) == 130
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"hero-run: stopped by {name}; what is finished stays on disk" in hero.said()
    assert prefect_server.run_on(hero.data_root)["state_type"] == "CANCELLED"
    assert hero.left() == [] and "Traceback" not in hero.said()


@pytest.mark.slow_fault
@pytest.mark.fault("zombie-run")
def test_a_live_run_that_is_set_to_crashed_by_an_automation_stops_and_stays_so(prefect_server, start_run):
    hero = start_run(prefect_server, LONG)
    hero.wait_for("server-load")
    flow_run_id = prefect_server.run_on(hero.data_root)["id"]
    state = {"type": "CRASHED", "message": "no heartbeat"}
    prefect_server.post(f"/flow_runs/{flow_run_id}/set_state", state=state)
    assert hero.ended(60) == 130
    assert "hero-run: set to Crashed from outside (no heartbeat) in " in hero.said() and hero.left() == []
    assert prefect_server.run_on(hero.data_root)["state_type"] == "CRASHED"


@pytest.fixture
def worker(own_server: PrefectServer, tmp_path: Path) -> Iterator[Path]:
    """A worker that runs the tiny flow from a deployment; the data root of its runs."""
    data_root, variables = tmp_path / "data", tmp_path / "prefect.yaml"
    step = f"{{prefect.deployments.steps.set_working_directory: {{directory: {PROJECT}}}}}"
    environment = f"{{TINY_STAGE_SECONDS: '{LONG}', PYTHONPATH: {PROJECT}, PREFECT_CLIENT_MAX_RETRIES: '10'}}"
    variables.write_text(
        "deployments:\n- name: hero-run\n  entrypoint: tests.flows.tiny_flow.hero_run\n"
        f"  pull: [{step}]\n  work_pool: {{name: hero-run, job_variables: {{env: {environment}}}}}\n"
    )
    own_server.prefect("work-pool", "create", "hero-run", "--type", "process")
    own_server.prefect("deploy", "--all", "--prefect-file", str(variables))
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "hero-run", "--limit", "1"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, env=own_server.environment, cwd=tmp_path, stdout=log, stderr=log)
    yield data_root
    process.kill()
    process.wait()
    for stage in ("server-load", "drafter-download"):
        if (mark := data_root / f"{stage}.begun").exists() and Path(f"/proc/{mark.read_text()}").exists():
            os.kill(int(mark.read_text()), signal.SIGKILL)


@pytest.mark.slow_fault
@pytest.mark.parametrize("outage_seconds", [0, 45])
@pytest.mark.fault("cancelled-in-any-stage")
@pytest.mark.fault("api-away")
def test_a_workers_run_is_cancelled_also_after_the_worker_went_deaf(own_server, worker, outage_seconds, happened):
    overrides = f'overrides={{"data_root": "{worker}"}}'
    own_server.prefect("deployment", "run", "hero-run/hero-run", "-p", "recipe=smollm2-cpu", "-p", overrides)
    mark = worker / "server-load.begun"
    wait_until(mark.exists, "the worker's run at work")
    if outage_seconds:
        own_server.kill()
        own_server.stay_away(outage_seconds)
        own_server.start()
    flow_run_id = own_server.run()["id"]
    own_server.prefect("flow-run", "cancel", flow_run_id)
    wait_until(lambda: own_server.run()["state_type"] != "CANCELLING", "an end of the cancelling", 60)
    assert own_server.run()["state_type"] == "CANCELLED"
    wait_until(lambda: not Path(f"/proc/{mark.read_text()}").exists(), "the end of the flow's process", 60)
    happened(f"with a worker, {outage_seconds} s after which the API came back, cancel ends as Cancelled")
