"""The real flow, cancelled at the API in stage after stage, each time going on where it was stopped."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tasks.system.manifest import MANIFEST_NAME, read_valid_manifest
from tests.flows.conftest import serving
from tests.flows.live import HeroRun, PrefectServer, wait_until
from tests.flows.test_end_to_end import TINY

pytestmark = [pytest.mark.vllm, pytest.mark.slow_fault, pytest.mark.fault("cancelled-in-any-stage")]

GRACE_SECONDS = 60.0
"""Above every grace time, and the few seconds until the run looks at its state."""

Begun = Callable[[Path, Path], bool]
"""From the data root and the run's folder of logs to whether a stage is at its work."""


def journal_has_lines(data_root: Path, _logs: Path) -> bool:
    return any(path.stat().st_size for path in data_root.glob("answers/*/journal.jsonl"))


def log_says(name: str) -> Begun:
    return lambda _data_root, logs: (logs / name).exists() and (logs / name).stat().st_size > 0


STAGES: dict[str, Begun] = {
    "server-load": log_says("server.log"),
    "inference": journal_has_lines,
    "extraction": log_says("extract.json.progress.jsonl"),
    "training": log_says("train.json.progress.jsonl"),
    "evaluation": log_says("evaluation-none.log"),
}
MADE_BEFORE = {
    "server-load": set(),
    "inference": set(),
    "extraction": {"responses"},
    "training": {"responses", "states"},
    "evaluation": {"responses", "states", "trained"},
}
"""What is finished on disk when a stage is cancelled."""


@dataclass
class Cancelled:
    """What a cancelled run left."""

    stage: str
    code: int
    state: str
    message: str
    left: list[str]
    listening: list[int]
    finished: set[str]
    said: str = field(repr=False)


def below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def ports_of(processes: list[psutil.Process]) -> set[int]:
    found = set()
    for process in processes:
        try:
            connections = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        found |= {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return found


def is_listened_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def finished_kinds(data_root: Path) -> set[str]:
    kinds = ("responses", "states", "trained", "evaluations")
    manifests = [path for kind in kinds for path in data_root.glob(f"{kind}/*/{MANIFEST_NAME}")]
    torn = [path for path in manifests if read_valid_manifest(path.parent) is None]
    assert not torn, f"these manifests do not match their files: {torn}"
    return {path.parents[1].name for path in manifests}


def start(server: PrefectServer, data_root: Path) -> HeroRun:
    changes = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    return HeroRun(data_root, server.environment, 0.0, *changes, module="flows.cli")


def cancel_in(server: PrefectServer, data_root: Path, stage: str) -> Cancelled:
    """Start a run, wait until a stage is at work, cancel it as the UI does, and look at what is left."""
    earlier = {run["id"] for run in server.runs()}
    hero = start(server, data_root)
    flow = psutil.Process(hero.process.pid)

    def at_work() -> bool:
        assert hero.process.poll() is None, f"the run ended before {stage}:\n{hero.said()[-5000:]}"
        names = [run["name"] for run in server.runs() if run["id"] not in earlier]
        return bool(names) and STAGES[stage](data_root, data_root / "logs" / names[0])

    wait_until(at_work, f"{stage} at work", 400)
    tree = below(flow)
    ports = ports_of(tree)
    flow_run_id = server.run()["id"]
    server.cancel(flow_run_id)
    code = hero.ended(GRACE_SECONDS)
    record = server.get(f"/flow_runs/{flow_run_id}")
    return Cancelled(
        stage=stage,
        code=code,
        state=record["state_type"],
        message=record["state"]["message"],
        left=[str(process) for process in tree if process.is_running()] + hero.left(),
        listening=[port for port in ports if is_listened_on(port)],
        finished=finished_kinds(data_root),
        said=hero.said(),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from serving(tmp_path_factory.mktemp("cancels"))


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hero") / "data"


@pytest.fixture(scope="module")
def cancels(server, data_root) -> dict[str, Cancelled]:
    """One cancelled run after the other, on the same data root."""
    return {stage: cancel_in(server, data_root, stage) for stage in STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_is_cancelled_in_a_stage_ends_as_cancelled_and_says_where(cancels, stage):
    run = cancels[stage]
    assert (run.code, run.state) == (130, "CANCELLED"), run.said[-5000:]
    assert run.message.startswith("cancelled in ") and stage in run.message
    assert "Traceback" not in run.said


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_of_a_run_that_was_cancelled_in_a_stage_is_left(cancels, stage):
    assert (cancels[stage].left, cancels[stage].listening) == ([], [])


@pytest.mark.parametrize("stage", STAGES)
def test_what_was_finished_before_the_stage_stays_finished(cancels, stage):
    assert cancels[stage].finished == MADE_BEFORE[stage]


def test_the_next_start_goes_on_to_the_verdict_and_repeats_nothing(cancels, server, data_root, happened):
    last = start(server, data_root)
    assert last.ended(1200) == 0, last.said()[-5000:]
    assert last.said().splitlines()[-1].startswith("verdict: ")
    for stage in ("inference", "extraction", "training"):
        assert f"Task run '{stage}' - Finished in state Cached" in last.said()
    happened(f"cancelled in {', '.join(STAGES)}: nothing left, each went on; then {last.said().splitlines()[-1][:60]}")
