"""These tests need Prefect, which the engine environment does not have."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.flows.live import HeroRun, PrefectServer

collect_ignore_glob = [] if importlib.util.find_spec("prefect") else ["test_*.py"]

StartRun = Callable[..., HeroRun]


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server for tests that leave it alone."""
    yield from serving(tmp_path_factory.mktemp("server"))


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[PrefectServer]:
    """A server that the test may kill."""
    yield from serving(tmp_path)


def serving(folder: Path) -> Iterator[PrefectServer]:
    server = PrefectServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[StartRun]:
    """Starts the tiny flow as users start the hero run; whatever is still there at the end is killed."""
    started: list[HeroRun] = []

    def start(server: PrefectServer, stage_seconds: float, data: str = "data", **environment: str) -> HeroRun:
        started.append(HeroRun(tmp_path / data, {**server.environment, **environment}, stage_seconds))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
