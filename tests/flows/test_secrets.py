"""Planted secrets are nowhere in what runs write and tell: runs that complete, that a hub refuses, and that break."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from blocks import DOCUMENT_NAME, HubAccess, VllmEngine
from tests.conftest import PROJECT
from tests.flows.conftest import serving
from tests.flows.live import HeroRun, PrefectServer
from tests.flows.secret_flow import PROCESSES_NAME, TELLS_VARIABLE
from tests.system.stub_hub import LISTING, Refuse, StubHub, stub_hub
from tests.tasks.test_downloads import FILES

BLOCK_TOKEN, OWN_TOKEN, ENGINE_KEY = (
    "hf_plantedInTheBlock4711",
    "hf_plantedInTheEnvironment4711",
    "sk-plantedForVllm4711",
)
SECRETS = {"the block's hub token": BLOCK_TOKEN, "HF_TOKEN": OWN_TOKEN, "the engine's API key": ENGINE_KEY}
STAND_IN = PROJECT / "tests" / "system" / "stand_in_engine.py"
STAND_IN_TOLD = {"STAND_IN_THEN": "serve", "STAND_IN_STEPS": "0", "STAND_IN_STEP_SECONDS": "0"}
PLACES = ("files of the runs", "Prefect's files", "the API's database", "the terminal", "ls and plan")


@dataclass
class Site:
    """A server of its own, a hub, and what became of the runs there."""

    folder: Path
    server: PrefectServer
    hub: StubHub
    ends: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    sent: dict[str, str | None] = field(default_factory=dict)
    """The authorization that the hub got in each run."""

    @property
    def environment(self) -> dict[str, str]:
        own = {"HF_TOKEN": OWN_TOKEN, "HF_HOME": str(self.folder / "hf"), "PREFECT_LOGGING_LEVEL": "DEBUG"}
        return {name: value for name, value in self.server.environment.items() if not name.startswith("HF_")} | own

    def run(self, name: str, data: str, *arguments: str, **environment: str) -> None:
        source = json.dumps({"kind": "hub", "name": "org/drafter"})
        sources = ["--set", f"target.source={source}", "--set", f"drafter.source={source}"]
        module = "tests.flows.secret_hero_run"
        told = {**self.environment, **environment}
        run = HeroRun(self.folder / "runs" / data, told, 0.0, *sources, *arguments, module=module)
        try:
            self.ends[name] = run.ended()
        finally:
            if run.process.poll() is None:
                run.process.kill()
        self.said[name] = run.said()
        self.sent[name] = self.hub.tokens.get("/api/models/org/drafter/revision/main")

    def command(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "flows.cli", *arguments, "--data-root", str(self.folder / "runs" / "one")]
        done = subprocess.run(command, env=self.environment, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def texts(self) -> dict[str, str]:
        """All that was written and told, by place."""
        self.server.kill()  # its log is whole then, and its database closed
        database = self.server.home / "prefect.db"
        with sqlite3.connect(database) as opened:
            dump = "\n".join(opened.iterdump())
        return {
            "files of the runs": contents(self.folder / "runs"),
            "Prefect's files": contents(self.server.home),
            "the API's database": dump,
            "the terminal": "\n".join(self.said.values()),
            "ls and plan": self.command("ls", "--json") + self.command("plan", "smollm2-cpu", "--json"),
        }


def contents(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return "\n".join(f"{path}\n{path.read_bytes().decode(errors='replace')}" for path in files)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    """Three runs: one that completes, one that the hub refuses with the token in its answer, one that breaks."""
    folder = tmp_path_factory.mktemp("site")
    with stub_hub("org/drafter", FILES) as hub:
        for server in serving(folder):
            found = Site(folder, server, hub)
            with temporary_settings({PREFECT_API_URL: server.url}):
                engine = VllmEngine(python=str(STAND_IN), environment={**STAND_IN_TOLD, "VLLM_API_KEY": ENGINE_KEY})
                engine.save(DOCUMENT_NAME)
                HubAccess(endpoint=hub.endpoint).save(DOCUMENT_NAME)
                found.run("completes", "one")
                HubAccess(endpoint=hub.endpoint, token=BLOCK_TOKEN).save(DOCUMENT_NAME, overwrite=True)
                said = f"Invalid credentials: Bearer {BLOCK_TOKEN}"
                headers = {"x-error-message": said, "x-hf-warning": f"; {said}"}
                hub.cues[LISTING] = repeat(Refuse(401, headers, json.dumps({"error": said}).encode()))
                found.run("is refused", "two")
                del hub.cues[LISTING]
                found.run("breaks", "one", "--refresh", "inference", **{TELLS_VARIABLE: "1"})
            yield found


@pytest.fixture(scope="module")
def texts(site: Site) -> dict[str, str]:
    return site.texts()


def test_the_runs_ended_as_they_should(site):
    assert site.ends == {"completes": 0, "is refused": 1, "breaks": 1}, site.said


def test_each_secret_was_used(site):
    """The engine's key too: without it the stand-in answers with 401, and no run completes."""
    assert site.sent["completes"] == f"Bearer {OWN_TOKEN}" and site.sent["is refused"] == f"Bearer {BLOCK_TOKEN}"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_planted_secret_is_not_in(texts, secret, place):
    text = texts[place]
    at = text.find(SECRETS[secret])
    assert text and at < 0, text[max(0, at - 500) : at + 200]


def test_the_downloads_logs_have_the_hubs_answer_without_the_token(site, texts):
    logs = [log.read_text() for log in (site.folder / "runs" / "two").rglob("hub_download.log")]
    assert logs and all("Invalid credentials: Bearer ***" in log for log in logs)


def test_the_state_of_the_run_that_broke_has_its_error_without_the_secrets(texts):
    assert "LookupError: somebody else''s error, with *** and ***" in texts["the API's database"]  # as SQL quotes it


def test_the_look_at_the_processes_saw_the_server(site, texts):
    assert "stand_in_engine.py -m vllm" in (site.folder / "runs" / "one" / PROCESSES_NAME).read_text()
