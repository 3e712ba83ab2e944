"""A pytest plugin: the faults that tests show, checked against the catalogue and recorded for the summary.

With ``--fault-record FILE`` a test process writes JSON lines, in this order and each as soon as it is known:

- ``{"process", "began"}`` at the start;
- ``{"planned": [{"test", "faults"}, ...]}`` when the tests are collected;
- ``{"test", "faults", "outcome", "happened", "said"}`` for each test that ended; ``said`` when it told itself;
- ``{"process", "exit", "seconds"}`` at the end, so that a process that died is told from one that did not.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.catalogue import CATALOGUE

Happened = Callable[[str], None]

HAPPENED = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-record", metavar="FILE", help="write what the fault tests showed as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--fault-record"):
        config.pluginmanager.register(Recorder(Path(path)), "fault-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that name no fault of the catalogue: they would be counted nowhere."""
    unknown = [f"{item.nodeid}: {name!r}" for item in items for name in faults_of(item) if name not in CATALOGUE]
    if unknown:
        raise pytest.UsageError("faults that tests/faults/catalogue.py does not have: " + "; ".join(unknown))


@pytest.fixture
def happened(request: pytest.FixtureRequest) -> Happened:
    """Say in a sentence what was seen; without it the test's name is the sentence."""
    return lambda sentence: request.node.stash.__setitem__(HAPPENED, sentence)


def faults_of(item: pytest.Item) -> list[Any]:
    """The fault ids that a test carries."""
    return [mark.args[0] if mark.args else None for mark in item.iter_markers("fault")]


def sentence_of(item: pytest.Item) -> str:
    """What the test said, else its name without parameters."""
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    return item.stash.get(HAPPENED, name.removeprefix("test_").replace("_", " "))


class Recorder:
    """Writes the record of one test process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self._path = path
        self._began = time.monotonic()
        self._ended: dict[str, tuple[str, str]] = {}
        self._write({"process": path.stem, "began": time.time()})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        planned = [{"test": item.nodeid, "faults": faults_of(item)} for item in session.items]
        self._write({"planned": [test for test in planned if test["faults"]]})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[misc, assignment]
        # The first phase that did not pass decides; a failing teardown turns a pass into a failure.
        if not report.passed and self._ended.get(item.nodeid, ("skipped", ""))[0] == "skipped":
            self._ended[item.nodeid] = (report.outcome, _reason(report))
        if report.when == "teardown" and (faults := faults_of(item)):
            outcome, reason = self._ended.get(item.nodeid, ("passed", ""))
            sentence = sentence_of(item)
            what = {"passed": sentence, "skipped": reason, "failed": f"{sentence}: {reason}"}[outcome]
            record = {"test": item.nodeid, "faults": faults, "outcome": outcome, "happened": what}
            self._write({**record, "said": HAPPENED in item.stash})
        return report  # type: ignore[return-value]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        seconds = round(time.monotonic() - self._began, 1)
        self._write({"process": self._path.stem, "exit": int(exitstatus), "seconds": seconds})


def _reason(report: pytest.TestReport) -> str:
    """Why a phase failed or was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)  # absent where pytest itself formats an error as text
    text = crash.message if crash else str(report.longrepr).strip().rpartition("\n")[2]
    return text.splitlines()[0] if text else "no reason given"
