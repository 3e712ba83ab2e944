"""The automation that ends a run whose process was killed, on a real server."""

from pathlib import Path

import pytest
import yaml

from flows.automations import read_automations
from tests.conftest import PROJECT
from tests.flows.live import wait_until


@pytest.fixture
def automation() -> dict:
    (found,) = [entry for entry in read_automations() if entry["name"] == "hero-run-without-heartbeat"]
    return found


@pytest.mark.fault("zombie-run")
def test_the_automation_waits_for_more_than_five_heartbeats_of_the_deployment(automation):
    (deployment,) = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    environment = deployment["work_pool"]["job_variables"]["env"]
    assert automation["trigger"]["within"] > 5 * int(environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])


def shortened(automation: dict, folder: Path, seconds: int) -> Path:
    """The same automation, sooner."""
    path = folder / "automations.yaml"
    short = {**automation, "trigger": {**automation["trigger"], "within": seconds}}
    path.write_text(yaml.safe_dump({"automations": [short]}))
    return path


@pytest.mark.slow_fault
@pytest.mark.fault("zombie-run")
def test_a_killed_run_is_set_to_crashed_and_a_healthy_one_is_not(own_server, start_run, automation, tmp_path, happened):
    within_seconds, heartbeat = 90, {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    own_server.prefect("automation", "create", "--from-file", str(shortened(automation, tmp_path, within_seconds)))
    # Both longer than the automation waits, the healthy one over three stages.
    killed = start_run(own_server, 300, "killed", **heartbeat)
    healthy = start_run(own_server, within_seconds / 2, "healthy", **heartbeat)
    killed.wait_for("server-load")
    healthy.wait_for("server-load")
    killed.process.kill()
    wait_until(lambda: own_server.run_on(killed.data_root)["state_type"] != "RUNNING", "an end of the killed run", 240)
    state = own_server.run_on(killed.data_root)["state"]
    assert (state["type"], state["message"]) == ("CRASHED", automation["actions"][0]["message"])
    assert healthy.ended() == 0, healthy.said()
    record = own_server.run_on(healthy.data_root)
    assert record["state_type"] == "COMPLETED"
    happened(f"killed: Crashed within {within_seconds + 60} s; a healthy run of {record['total_run_time']:.0f} s: not")
