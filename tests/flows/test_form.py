"""The form in the UI and `-p` on the command line: what a server refuses at once, and what the run itself does."""

import json
import subprocess
import sys

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deploying import deploy
from flows.deployment_files import DEPLOYMENTS_PATH
from tests.conftest import PROJECT

NAME = "hero-run/hero-run"


@pytest.fixture(scope="module")
def client(prefect_server):
    with temporary_settings({PREFECT_API_URL: prefect_server.url}), get_client(sync_client=True) as client:
        list(deploy(client, DEPLOYMENTS_PATH, None))
        yield client


@pytest.fixture(scope="module")
def deployment(client):
    return client.read_deployment_by_name(NAME)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"recipe": "kimi-k3"}, "'recipe'. Failure reason: 'kimi-k3' is not one of ['kimi-k25', "),
        ({"refresh": ["trainin"]}, "'refresh[0]'. Failure reason: 'trainin' is not one of ["),
        ({"recip": "smollm2-cpu"}, "Additional properties are not allowed ('recip' was unexpected)"),
        ({"overrides": {"training": {"epochs": 0}}}, "'overrides.training.epochs'. Failure reason: 0 is less than the"),
        ({"overrides": {"training": {"epochs": "two"}}}, "'overrides.training.epochs'. Failure reason: 'two' is not"),
        ({"overrides": {"training": {"epocs": 1}}}, "Additional properties are not allowed ('epocs' was unexpected)"),
        ({"overrides": {"server": {"engine": {"arguments": ["--x", 1]}}}}, "'overrides.server.engine.arguments[1]'."),
        ({"deadline": {"stop_at": "25:00"}}, "'deadline.stop_at'. Failure reason: '25:00' does not match"),
        ({"deadline": {"stop_at": "07:30", "zone": "UTC"}}, "Additional properties are not allowed ('zone' was"),
    ],
)
def test_the_server_refuses_it_before_there_is_a_run(client, deployment, parameters, said):
    runs = client.count_flow_runs()
    with pytest.raises(PrefectHTTPStatusError) as refused:
        client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    assert said in refused.value.response.json()["detail"]
    assert client.count_flow_runs() == runs


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"recipe": "smollm2-cpu", "overrides": None, "refresh": None, "deadline": None},
        {"overrides": {"training": {"epochs": 2}, "target": {"source": {"revision": "v1"}}}, "refresh": ["training"]},
        {"overrides": {"drafter": {"source": {"revision": "v1"}}}},
        {"deadline": {"stop_at": "07:30", "time_zone": "Europe/Berlin", "then": "finish"}},
    ],
)
def test_the_server_takes_what_is_right(client, deployment, parameters):
    run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    assert client.read_flow_run(run.id).state_name == "Scheduled"
    client.delete_flow_run(run.id)


def prefect(server, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    environment = {**server.environment, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_parameters_on_the_command_line_arrive_as_they_are_meant(client, prefect_server):
    overrides = {"data_root": "/data/mine", "training": {"epochs": 2}}
    settings = ["-p", "recipe=smollm2-cpu", "-p", f"overrides={json.dumps(overrides)}"]
    code, said = prefect(prefect_server, "deployment", "run", NAME, *settings)
    assert code == 0, said
    run = prefect_server.run()
    assert run["parameters"] == {"recipe": "smollm2-cpu", "overrides": overrides}
    client.delete_flow_run(run["id"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("recip=smollm2-cpu", "not found on the deployment: 'recip'"),
        ('overrides={"training": {"epochs": 0}}', "0 is less than the minimum of 1"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_said(client, prefect_server, setting, said):
    code, output = prefect(prefect_server, "deployment", "run", NAME, "-p", setting)
    assert code == 1 and said in " ".join(output.split())


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"recipe": "smollm2-cpu", "deadline": {"stop_at": "07:30", "after_hours": 3}},
            "RecipeError: a deadline is either a time of day (stop_at, such as 07:30) or a duration (after_hours, such "
            "as 11.5); found both.",
        ),
        (
            {"recipe": "smollm2-cpu", "overrides": {"drafter": {"source": {"kind": "hub"}}}},
            "RecipeError: drafter.source lacks the field 'name'.",
        ),
    ],
)
def test_what_only_the_run_can_know_is_its_last_state_in_one_line(client, deployment, prefect_server, parameters, said):
    run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    prefect(prefect_server, "flow-run", "execute", str(run.id))
    state = client.read_flow_run(run.id).state
    assert state.is_failed()
    assert state.message == f"Flow run encountered an exception: {said}"
