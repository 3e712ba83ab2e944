"""The literal `prefect deployment run hero-run`, through Prefect's own command line as a process."""

import logging
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.plugins import HookContext

from flows import local_api
from flows.prefect_command import complete_name, setup_environment
from tests.conftest import PROJECT


class NoDeployments(BaseHTTPRequestHandler):
    """An API that has none, and remembers which one was asked for."""

    def do_GET(self):
        _, _, name = self.path.partition("/deployments/name/")
        self.server.asked += [name] if name else []
        is_up = self.path == "/api/health"
        self.send_response(200 if is_up else 404)
        self.end_headers()
        self.wfile.write(b"true" if is_up else b"")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def api() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NoDeployments)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder for PYTHONPATH that installs this tree's entry points, whichever tree the environment has installed."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    metadata = folder / f"hero_run-{project['version']}.dist-info"
    metadata.mkdir()
    of_it = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\n{of_it}")
    (metadata / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n{name} = {value}\n"
            for group, names in project["entry-points"].items()
            for name, value in names.items()
        )
    )
    return folder


@pytest.fixture
def prefect(api, installed, tmp_path):
    """Calls `prefect` in a folder; returns the deployments that the API was asked for, and what the command said."""

    def call(*arguments: str, folder: Path = PROJECT, program: list[str] | None = None, **environment: str):
        api.asked = []
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        settings = {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": f"http://127.0.0.1:{api.server_port}/api"}
        settings |= {"PYTHONPATH": f"{installed}:{PROJECT}", "DO_NOT_TRACK": "1", **environment}
        command = [*(program or [str(Path(sys.executable).with_name("prefect"))]), *arguments]
        environment = {**inherited, **settings}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return api.asked, done.stdout + done.stderr

    return call


def test_the_bare_name_is_the_flows_and_the_deployments(prefect):
    asked, _ = prefect("deployment", "run", "hero-run", "-p", "recipe=smollm2-cpu")
    assert asked == ["hero-run/hero-run"]


def test_python_m_prefect_is_the_same_command(prefect):
    asked, _ = prefect("deployment", "run", "hero-run", program=[sys.executable, "-m", "prefect"])
    assert asked == ["hero-run/hero-run"]


def test_the_full_name_is_left_alone(prefect):
    asked, _ = prefect("deployment", "run", "hero-run/hero-run")
    assert asked == ["hero-run/hero-run"]


def test_another_bare_name_is_left_alone(prefect):
    asked, said = prefect("deployment", "run", "nightly")
    assert asked == [] and "Invalid deployment name format: nightly" in said


def test_in_another_folder_the_bare_name_is_what_prefect_makes_of_it(prefect, tmp_path):
    asked, said = prefect("deployment", "run", "hero-run", folder=tmp_path)
    assert asked == [] and "Invalid deployment name format: hero-run" in said


def test_in_another_project_with_plugins_the_bare_name_is_left_alone(prefect, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    asked, said = prefect("deployment", "run", "hero-run", folder=tmp_path, PREFECT_PLUGINS_ENABLED="true")
    assert asked == [] and "Invalid deployment name format: hero-run" in said


def test_when_the_hook_fails_prefect_goes_on_and_nothing_is_said_of_it(prefect, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.prefect.plugins]\nenabled = true\n")  # without a project's name
    asked, said = prefect("deployment", "run", "hero-run/hero-run", folder=tmp_path)
    assert asked == ["hero-run/hero-run"] and "lugin" not in said


@pytest.fixture
def command_without_api(api, monkeypatch):
    """Calls the hook as in `prefect ...`, with a local API that is up."""

    def call(*arguments: str, api_url: str | None = None):
        monkeypatch.chdir(PROJECT)
        monkeypatch.setattr(sys, "argv", ["prefect", *arguments])
        monkeypatch.setattr(local_api, "DEFAULT_UI_PORT", api.server_port)
        return setup_environment(ctx=HookContext("3.9.1", api_url, logging.getLogger))

    return call


def test_without_a_configured_api_the_local_one_is_used(command_without_api, api):
    result = command_without_api("flow-run", "ls")
    assert result.env == {"PREFECT_API_URL": f"http://127.0.0.1:{api.server_port}/api"}


def test_a_configured_api_is_kept(command_without_api):
    assert command_without_api("flow-run", "ls", api_url="http://elsewhere/api") is None


def test_a_server_is_not_told_to_use_another(command_without_api):
    assert command_without_api("server", "start") is None


@pytest.mark.parametrize(
    ("arguments", "completed"),
    [
        (["prefect", "deployment", "run", "hero-run"], 3),
        (["prefect", "--no-prompt", "deployment", "run", "-p", "recipe=smollm2-cpu", "hero-run"], 6),
        (["prefect", "deployment", "run", "--watch", "hero-run"], 4),
        (["prefect", "deployment", "run", "--name", "hero-run"], 4),
        (["prefect", "deployment", "run", "--tag", "hero-run", "other/name"], None),
        (["prefect", "deployment", "run", "--flow-run-name", "hero-run", "other/name"], None),
        (["prefect", "deployment", "inspect", "hero-run"], None),
        (["prefect", "deployment", "run"], None),
    ],
)
def test_only_the_name_is_completed(arguments, completed):
    expected = [f"{word}/{word}" if i == completed else word for i, word in enumerate(arguments)]
    complete_name(arguments)
    assert arguments == expected


def test_the_package_is_imported_without_prefect():
    """The hook runs while Prefect is being imported."""
    code = "import sys, flows, flows.local_api; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0
