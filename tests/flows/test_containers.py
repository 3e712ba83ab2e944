"""The Dockerfile and the compose file agree with the project; nothing here starts a container."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from blocks import VllmEngine
from tests.conftest import PROJECT

DOCKERFILE = (PROJECT / "Dockerfile").read_text()
COPIED = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
COMPOSE = yaml.safe_load((PROJECT / "deployments" / "compose.yaml").read_text())
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
SERVER = COMPOSE["services"]["prefect"]


def pinned(package: str, extra: str) -> str:
    (found,) = [
        want for want in PYPROJECT["project"]["optional-dependencies"][extra] if want.startswith(package + "==")
    ]
    return found.partition("==")[2]


@pytest.mark.parametrize("source", [source for sources in COPIED for source in sources])
def test_what_is_copied_is_there_and_reaches_the_build(source):
    rules = (PROJECT / ".dockerignore").read_text().splitlines()
    assert (PROJECT / source).exists() and f"!{source}" in rules


def test_every_package_of_the_project_is_copied():
    patterns = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {path.parent.name for pattern in patterns for path in PROJECT.glob(f"{pattern}/__init__.py")}
    assert packages and packages <= {source for sources in COPIED for source in sources}


def test_no_file_of_secrets_reaches_the_build():
    rules = (PROJECT / ".dockerignore").read_text().splitlines()
    assert rules.index("*") < rules.index("**/.env") > max(i for i, rule in enumerate(rules) if rule.startswith("!"))


def test_vllm_is_the_one_that_the_engine_extra_pins():
    assert re.search(r"^ARG VLLM_VERSION=(.+)$", DOCKERFILE, re.M)[1] == pinned("vllm", "engine-gpu")


def test_the_engines_python_is_where_the_block_looks_for_it():
    (caller,) = re.findall(r'"\$\(command -v python3\)" > (\S+)', DOCKERFILE)
    assert caller == VllmEngine().python


def test_the_servers_image_has_the_prefect_and_a_python_of_the_project():
    tag = re.fullmatch(r"prefecthq/prefect:([\d.]+)-python([\d.]+)", SERVER["image"])
    least = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    assert tag[1] == pinned("prefect", "flow")
    assert tuple(map(int, tag[2].split("."))) >= tuple(map(int, least.split(".")))


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_ports_are_open_on_this_machine_only(name):
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"][name].get("ports", []))


def test_the_server_is_told_the_database_that_is_started():
    postgres = COMPOSE["services"]["postgres"]["environment"]
    url = SERVER["environment"]["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert (
        url
        == f"postgresql+asyncpg://{postgres['POSTGRES_USER']}:${{POSTGRES_PASSWORD}}@postgres:5432/{postgres['POSTGRES_DB']}"
    )


def test_no_password_is_written_down():
    assert COMPOSE["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert fnmatch.filter((PROJECT / ".gitignore").read_text().splitlines(), ".env")


def test_a_volume_that_is_named_is_declared():
    named = {v.partition(":")[0] for s in COMPOSE["services"].values() for v in s.get("volumes", []) if v[0].isalpha()}
    assert named == set(COMPOSE["volumes"])


def test_the_worker_is_built_from_the_dockerfile():
    assert (PROJECT / "deployments" / Path(COMPOSE["services"]["worker"]["build"]) / "Dockerfile").exists()
