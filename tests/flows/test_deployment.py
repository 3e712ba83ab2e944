"""What `prefect deploy --all` reads."""

import importlib

import pytest
import yaml

from tests.conftest import PROJECT


@pytest.fixture
def deployment() -> dict:
    (found,) = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    return found


def test_flow_and_deployment_have_the_same_name(deployment):
    module, _, name = deployment["entrypoint"].rpartition(".")
    assert getattr(importlib.import_module(module), name).name == deployment["name"] == "hero-run"


def test_the_parameters_are_the_flows(deployment):
    from flows.hero_run import hero_run

    assert set(deployment["parameters"]) <= set(hero_run.parameters.properties)


def test_the_form_describes_its_fields():
    from flows.hero_run import hero_run

    schema = hero_run.parameters.model_dump()
    training = schema["definitions"]["TrainingOverrides"]["properties"]["learning_rate"]
    assert "peak learning rate (identity)" in str(training)
