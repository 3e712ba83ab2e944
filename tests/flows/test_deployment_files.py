"""The files in deployments/: nothing in them is misspelt, and what is misspelt is refused."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel, WorkPoolConfig
from prefect.settings import get_current_settings
from prefect.workers.process import ProcessVariables

from flows import automations, deployment_files
from flows.automations import read_automations
from flows.deploying import created
from flows.deployment_files import (
    FOLDER,
    Deployment,
    DeploymentFile,
    PoolChoice,
    keys_of,
    load,
    read_deployments,
    read_job_template,
    read_pools,
    read_schedules,
)
from flows.hero_run import hero_run
from tasks.cut_short import DEADLINE_STATE
from tasks.errors import BadInput
from tasks.progress_events import PROGRESS_EVENT

DEPLOYMENT_FILES = ["prefect.yaml", "kubernetes.yaml"]


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A copy of the folder, which is read in its place."""
    copy = tmp_path / "deployments"
    shutil.copytree(FOLDER, copy)
    monkeypatch.setattr(deployment_files, "FOLDER", copy)
    monkeypatch.setattr(deployment_files, "POOLS_PATH", copy / "work_pools.yaml")
    monkeypatch.setattr(deployment_files, "SCHEDULES_PATH", copy / "schedules.yaml")
    monkeypatch.setattr(automations, "AUTOMATIONS_PATH", copy / "automations.yaml")
    return copy


def misspell(path: Path, *keys: Any) -> None:
    """Add an `x` to a key."""
    content = yaml.safe_load(path.read_text())
    *parents, last = keys
    mapping = content
    for key in parents:
        mapping = mapping[key]
    mapping[f"{last}x"] = mapping.pop(last)
    path.write_text(yaml.safe_dump(content))


READERS = {
    "prefect.yaml": lambda folder: read_deployments(folder / "prefect.yaml"),
    "work_pools.yaml": lambda folder: read_pools(),
    "schedules.yaml": lambda folder: read_schedules(),
    "automations.yaml": lambda folder: read_automations(),
}


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("prefect.yaml", ["deployments"], "has no field 'deploymentsx'"),
        ("prefect.yaml", ["deployments", 0, "tags"], "deployments[0] has no field 'tagsx'"),
        ("prefect.yaml", ["deployments", 0, "work_pool", "job_variables"], "has no field 'job_variablesx'"),
        ("work_pools.yaml", ["work_pools", 0, "concurrency_limit"], "has no field 'concurrency_limitx'"),
        ("schedules.yaml", ["schedules", 0, "timezone"], "schedules[0] has no field 'timezonex'"),
        (
            "automations.yaml",
            ["automations", 0, "description"],
            "has the keys descriptionx, which Prefect would ignore",
        ),
        ("automations.yaml", ["automations", 3, "trigger", "within"], "has the keys trigger.withinx, which"),
        ("automations.yaml", ["automations", 4, "actions", 0, "message"], "has the keys actions.0.messagex, which"),
    ],
)
def test_a_misspelt_key_is_refused_with_its_file(files, name, keys, said):
    misspell(files / name, *keys)
    with pytest.raises(BadInput) as refused:
        READERS[name](files)
    assert said in str(refused.value) and str(files / name) in str(refused.value)


def test_the_keys_are_those_that_prefect_deploy_reads_too():
    assert keys_of(Deployment) <= set(DeploymentConfig.model_fields)
    assert keys_of(PoolChoice) <= set(WorkPoolConfig.model_fields)
    assert keys_of(DeploymentFile) <= set(PrefectYamlModel.model_fields)


@pytest.mark.parametrize("name", DEPLOYMENT_FILES)
def test_job_variables_are_those_that_the_pools_workers_know(name):
    for deployment in read_deployments(FOLDER / name):
        template = read_job_template(read_pools()[deployment.work_pool.name])
        known = template["variables"]["properties"] if template else ProcessVariables.model_fields
        assert set(deployment.work_pool.job_variables) <= set(known)


@pytest.mark.parametrize("name", DEPLOYMENT_FILES)
def test_prefects_settings_in_the_environment_exist(name):
    known = set(get_current_settings().to_environment_variables(exclude_unset=False))
    for deployment in read_deployments(FOLDER / name):
        assert {key for key in deployment.work_pool.job_variables["env"] if key.startswith("PREFECT_")} <= known


@pytest.mark.parametrize("name", DEPLOYMENT_FILES)
def test_queues_and_parameters_exist(name):
    for deployment in read_deployments(FOLDER / name):
        queues = [None, *read_pools()[deployment.work_pool.name].queues]
        assert deployment.work_pool.work_queue_name in queues
        hero_run.validate_parameters(deployment.parameters)


def test_the_kubernetes_template_uses_the_variables_that_it_declares():
    (pool,) = [pool for pool in read_pools().values() if pool.type == "kubernetes"]
    template = read_job_template(pool)
    used = set(re.findall(r"{{ (\w+) }}", str(template["job_configuration"])))
    assert used == set(template["variables"]["properties"])


@pytest.mark.parametrize("schedule", read_schedules(), ids=lambda schedule: schedule.slug)
def test_schedules_are_what_a_deployment_may_have_and_are_switched_off(schedule):
    made = created(schedule)
    assert made.active is False and made.schedule.timezone
    hero_run.validate_parameters(made.parameters)
    assert schedule.deployment == "hero-run/hero-run"


def test_slugs_are_different():
    slugs = [(schedule.deployment, schedule.slug) for schedule in read_schedules()]
    assert len(set(slugs)) == len(slugs)


@pytest.mark.parametrize(("key", "value"), [("cron", "0 25 * * *"), ("timezone", "Europe/Berlim")])
def test_a_cron_line_or_time_zone_that_is_none_is_refused(files, key, value):
    content = load(files / "schedules.yaml")
    content["schedules"][0][key] = value
    (files / "schedules.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match=r"schedules.yaml: schedule 'nights': .*[iI]nvalid"):
        created(read_schedules()[0])


ENDS = {"Completed", "Failed", "TimedOut", "Crashed", "Cancelled", DEADLINE_STATE}
OTHERS = {"Pending", "Running", "Late", "AwaitingRetry", "heartbeat"}
EVENTS = {PROGRESS_EVENT, *(f"prefect.flow-run.{name}" for name in OTHERS | ENDS)}


@pytest.mark.parametrize("entry", read_automations(), ids=lambda entry: entry["name"])
def test_automations_wait_for_events_that_there_are(entry):
    assert {*entry["trigger"]["expect"], *entry["trigger"].get("after", [])} <= EVENTS


@pytest.mark.parametrize("name", ["hero-run-stalled", "hero-run-without-heartbeat"])
def test_whatever_ends_a_run_ends_the_wait_for_it(name):
    (entry,) = [entry for entry in read_automations() if entry["name"] == name]
    assert {f"prefect.flow-run.{state}" for state in ENDS} < set(entry["trigger"]["expect"])
