"""`hero-run deploy` on a real server: what it makes, and what of the UI's it leaves alone when it is called again."""

import json
import subprocess
import sys

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deploying import deploy
from flows.deployment_files import DEPLOYMENTS_PATH, FOLDER, read_schedules
from tasks.errors import BadInput
from tests.conftest import PROJECT
from tests.flows.conftest import serving
from tests.flows.live import free_port

NAME = "hero-run/hero-run"
PATH = f"/deployments/name/{NAME}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from serving(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def client(server):
    with temporary_settings({PREFECT_API_URL: server.url}), get_client(sync_client=True) as client:
        yield client


def hero_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def first(server) -> list[str]:
    """What the first call said, as the command; every test here comes after it."""
    called = hero_run("deploy", **server.environment)
    assert called.returncode == 0, called.stdout + called.stderr
    return called.stdout.splitlines()


@pytest.fixture
def again(first, client):
    """Calls it again; returns what it said."""
    return lambda path=DEPLOYMENTS_PATH, notify=None: list(deploy(client, path, notify))


def starting(lines: list[str], start: str) -> str:
    (found,) = [line for line in lines if line.startswith(start)]
    return found


def test_the_first_call_makes_everything_in_one_command(first, server):
    assert first[0] == "created   work pool hero-run (process, 1 run at a time)"
    assert f"created   deployment {NAME}" in first
    assert server.get("/work_pools/hero-run")["concurrency_limit"] == 1
    assert server.get(PATH)["work_pool_name"] == "hero-run"
    assert first[-1] == "next: make worker, and then: prefect deployment run hero-run"


def test_schedules_have_a_time_zone_and_are_off(first, server):
    schedules = server.get(PATH)["schedules"]
    assert {schedule["slug"] for schedule in schedules} == {schedule.slug for schedule in read_schedules()}
    assert not any(schedule["active"] for schedule in schedules)
    assert all(schedule["schedule"]["timezone"] for schedule in schedules)


def test_a_second_call_changes_nothing(again, server):
    before = server.get(PATH), server.post("/automations/filter"), server.get("/work_pools/hero-run")
    verbs = {line.split()[0] for line in again()}
    assert (server.get(PATH), server.post("/automations/filter"), server.get("/work_pools/hero-run")) == before
    assert verbs == {"kept", "registered", "left", "next:"}


def test_the_block_types_are_registered(again, server):
    slug = "hero-run-data-volume"
    server.send("DELETE", f"/block_types/{server.get(f'/block_types/slug/{slug}')['id']}")
    assert slug in starting(again(), "registered block types")
    assert server.get(f"/block_types/slug/{slug}")["slug"] == slug


@pytest.fixture
def nights(first, server) -> dict:
    """A schedule as somebody has changed all of it in the UI."""
    found = server.get(PATH)
    (schedule,) = [schedule for schedule in found["schedules"] if schedule["slug"] == "nights"]
    changed = {
        "active": True,
        "schedule": {"cron": "30 21 * * 1-5", "timezone": "Asia/Tokyo", "day_or": True},
        "parameters": {"recipe": "smollm2-cpu"},
    }
    server.send("PATCH", f"/deployments/{found['id']}/schedules/{schedule['id']}", changed)
    return changed


def slug_nights(server) -> dict:
    (found,) = [schedule for schedule in server.get(PATH)["schedules"] if schedule["slug"] == "nights"]
    return {name: found[name] for name in ("active", "schedule", "parameters")}


def test_a_schedule_stays_as_the_ui_has_it(nights, again, server):
    line = starting(again(), "kept      schedule nights")
    assert line == "kept      schedule nights (30 21 * * 1-5, Asia/Tokyo, recipe=smollm2-cpu), on"
    assert slug_nights(server) == nights


def test_a_schedule_stays_as_the_ui_has_it_after_prefect_deploy_too(nights, server):
    server.prefect("deploy", "--all")
    assert slug_nights(server) == nights


def test_a_schedule_that_somebody_made_in_the_ui_stays(again, server):
    deployment = server.get(PATH)
    mine = {"schedule": {"interval": 86400}, "active": False}
    server.send("POST", f"/deployments/{deployment['id']}/schedules", [mine])
    before = server.get(PATH)["schedules"]
    again()
    assert server.get(PATH)["schedules"] == before and len(before) == len(read_schedules()) + 1


def test_parameters_and_job_variables_of_the_ui_stay_beside_those_of_the_file(again, server):
    deployment = server.get(PATH)
    of_the_ui = {"env": {"CUDA_VISIBLE_DEVICES": "0", "PREFECT_CLIENT_MAX_RETRIES": "1"}, "stream_output": False}
    changed = {"parameters": {"recipe": "smollm2-cpu"}, "job_variables": of_the_ui}
    server.send("PATCH", f"/deployments/{deployment['id']}", changed)
    line = starting(again(), "updated   deployment")
    assert line.endswith(", with recipe, stream_output, env.CUDA_VISIBLE_DEVICES as it was")
    found = server.get(PATH)
    assert found["parameters"] == {"recipe": "smollm2-cpu"}
    assert found["job_variables"]["env"] == {**deployment["job_variables"]["env"], "CUDA_VISIBLE_DEVICES": "0"}


def test_an_automation_that_was_switched_off_stays_off_when_it_is_brought_up_to_date(again, server):
    (found,) = [one for one in server.post("/automations/filter") if one["name"] == "hero-run-without-heartbeat"]
    old = {name: found[name] for name in ("name", "trigger", "actions")}
    server.send("PUT", f"/automations/{found['id']}", {**old, "description": "an older text", "enabled": False})
    line = starting(again(), "updated   automation hero-run-without-heartbeat")
    assert line.endswith("switched off as it was")
    after = server.get(f"/automations/{found['id']}")
    assert (after["enabled"], after["description"]) == (False, found["description"])


def test_a_pool_that_lets_two_runs_through_is_told_and_kept(again, server):
    server.send("PATCH", "/work_pools/hero-run", {"concurrency_limit": 3})
    try:
        line = starting(again(), "kept      work pool")
    finally:
        server.send("PATCH", "/work_pools/hero-run", {"concurrency_limit": 1})
    assert "it has the limit 3, so that a run may find the GPUs taken and fail" in line
    assert line.endswith("prefect work-pool set-concurrency-limit hero-run 1")


def test_a_pool_of_another_type_is_refused(again, server, tmp_path):
    content = yaml.safe_load(DEPLOYMENTS_PATH.read_text())
    content["deployments"][0]["work_pool"]["name"] = "hero-run-kubernetes"
    server.post("/work_pools/", name="hero-run-kubernetes", type="docker")
    path = tmp_path / "prefect.yaml"
    path.write_text(yaml.safe_dump(content))
    try:
        with pytest.raises(
            BadInput, match="'hero-run-kubernetes' must be of type kubernetes, found one of type docker"
        ):
            again(path)
    finally:
        server.send("DELETE", "/work_pools/hero-run-kubernetes")


def test_a_default_that_the_flow_does_not_take_is_refused_in_one_line(first, server, tmp_path):
    content = yaml.safe_load(DEPLOYMENTS_PATH.read_text())
    content["deployments"][0]["parameters"] = {"recipe": "kimi-k3"}
    path = tmp_path / "prefect.yaml"
    path.write_text(yaml.safe_dump(content))
    called = hero_run("deploy", str(path), **server.environment)
    assert called.returncode == 1
    assert called.stderr.startswith(f"hero-run: hero-run deploy: the Prefect API at {server.url} refused: ")
    assert "kimi-k3" in called.stderr and len(called.stderr.splitlines()) == 1


def test_the_kubernetes_variant_is_taken_by_a_server(again, server):
    lines = again(FOLDER / "kubernetes.yaml")
    assert "created   work pool hero-run-kubernetes (kubernetes, 1 run at a time)" in lines
    assert lines[-1].startswith("next: prefect worker start --pool hero-run-kubernetes --type kubernetes, and then: ")
    queues = {"kubernetes": "rtx-pro-6000", "kubernetes-b300": "b300"}
    found = {name: server.get(f"/deployments/name/hero-run/{name}") for name in queues}
    assert {name: deployment["work_queue_name"] for name, deployment in found.items()} == queues
    assert found["kubernetes"]["pull_steps"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": "/opt/hero-run"}}
    ]


def test_an_api_that_is_away_is_told_in_one_line_with_what_to_do(server):
    address = f"http://127.0.0.1:{free_port()}/api"
    called = hero_run("deploy", **{**server.environment, "PREFECT_API_URL": address})
    assert called.returncode == 1
    assert called.stderr == (
        f"hero-run: hero-run deploy needs a Prefect API, but {address} does not answer: [Errno 111] Connection "
        "refused. Start the local one (make ui) and leave it running, or name yours in PREFECT_API_URL.\n"
    )


def test_the_deployment_has_no_concurrency_limit_of_its_own(first, server):
    assert server.get(PATH)["global_concurrency_limit"] is None


def test_the_form_is_the_flows(first, server):
    schema = json.dumps(server.get(PATH)["parameter_openapi_schema"])
    assert "peak learning rate (identity)" in schema
