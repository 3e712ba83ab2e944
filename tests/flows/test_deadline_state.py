"""A run that ends at its deadline, on a real Prefect server: what the UI says of it, and what is left."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flows.live import HeroRun, PrefectServer

pytestmark = pytest.mark.fault("deadline")

LONG = 300.0
"""Stages of this length end only when they are stopped."""
MESSAGE = "server-load not finished, goes on at the next start"


@dataclass
class Ended:
    """A run after its deadline."""

    code: int
    record: dict
    tasks: dict[str, tuple[str, str, str]]
    """Name to type, name and message of the state."""
    said: str
    left: list[str]


def states_of_tasks(server: PrefectServer, flow_run_id: str) -> dict[str, tuple[str, str, str]]:
    found = server.post("/task_runs/filter", flow_runs={"id": {"any_": [flow_run_id]}})
    return {t["name"]: (t["state_type"], t["state_name"], t["state"]["message"]) for t in found}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("deadline") / "data"


@pytest.fixture(scope="module")
def ended(prefect_server, data_root) -> Ended:
    run = HeroRun(data_root, prefect_server.environment, LONG, "--stop-after", "15s")
    code = run.ended(60)
    record = prefect_server.run_on(data_root)
    return Ended(code, record, states_of_tasks(prefect_server, record["id"]), run.said(), run.left())


def test_the_run_ends_in_a_completed_state_of_that_name_that_says_how_far_it_came(ended):
    found = ended.record["state_type"], ended.record["state_name"], ended.record["state"]["message"]
    assert found == ("COMPLETED", "Deadline", MESSAGE), ended.said


def test_its_stages_end_in_that_state_too(ended):
    assert ended.tasks["server-load"] == ("COMPLETED", "Deadline", MESSAGE)
    message = "drafter-download not finished, goes on at the next start"
    assert ended.tasks["drafter-download"] == ("COMPLETED", "Deadline", message)


def test_it_is_over_at_the_deadline(ended):
    assert ended.record["total_run_time"] < 15


def test_the_command_says_so_in_its_last_line_and_exits_zero(ended):
    assert (ended.code, ended.said.splitlines()[-1]) == (0, f"deadline: {MESSAGE}")


def test_nothing_of_it_is_left_and_nothing_failed(ended):
    assert ended.left == [] and "faults on the way: none" in ended.said
    assert "Traceback" not in ended.said and "ERROR" not in ended.said


def test_its_log_says_when_it_ends_and_that_it_winds_down(ended):
    assert "deadline: 20" in ended.said and "on nothing new begins" in ended.said
    assert "the deadline is near: no stage begins any more, and the one at work winds down" in ended.said


def test_the_next_start_goes_on_there(ended, prefect_server, data_root):
    again = HeroRun(data_root, prefect_server.environment, 0.1)
    assert again.ended(60) == 0, again.said()
    states = states_of_tasks(prefect_server, prefect_server.run_on(data_root)["id"])
    assert states["server-load"][:2] == ("COMPLETED", "Completed")


def test_the_form_in_the_ui_has_a_deadline_and_knows_no_field_that_is_none_of_its_own():
    from flows.hero_run import hero_run

    schema = hero_run.parameters.model_dump()
    assert "the next start goes on there" in schema["properties"]["deadline"]["description"]
    assert schema["definitions"]["AskedDeadline"]["additionalProperties"] is False
