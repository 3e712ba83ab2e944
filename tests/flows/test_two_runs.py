"""Two runs at once, on the same data or on the same GPUs; and a run whose process was killed."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.flows.live import wait_until

LONG = 300.0
"""Stages of this length end only when they are stopped."""


@pytest.mark.fault("two-runs-at-once")
def test_a_second_run_on_the_same_data_is_refused_and_names_the_first(prefect_server, start_run):
    first = start_run(prefect_server, LONG)
    first.wait_for("server-load")
    name = prefect_server.run_on(first.data_root)["name"]
    second = start_run(prefect_server, LONG)
    assert second.ended() == 1
    assert (
        f"hero-run: {name} (process {first.process.pid}, data root {first.data_root}) is using {first.data_root}. "
        "Wait until it has ended, stop it, or choose another data root (--data-root DIR)."
    ) in second.said()
    assert "Traceback" not in second.said() and first.process.poll() is None


@pytest.fixture
def killed(prefect_server, start_run):
    """A run that was killed with SIGKILL in its first stage, and one that was started at once afterwards."""
    first = start_run(prefect_server, LONG)
    first.wait_for("server-load")
    record = prefect_server.run_on(first.data_root)
    running = {"server-load": "RUNNING", "drafter-download": "RUNNING"}
    wait_until(lambda: prefect_server.task_states(record["id"]) == running, "both tasks running in the UI")
    first.process.kill()
    first.process.wait()
    return first, record, start_run(prefect_server, 0.1)


@pytest.mark.fault("two-runs-at-once")
@pytest.mark.fault("zombie-run")
def test_a_killed_run_leaves_the_data_free_and_is_set_to_crashed_by_the_next(prefect_server, killed):
    first, record, second = killed
    assert second.ended() == 0, second.said()
    after = prefect_server.get(f"/flow_runs/{record['id']}")
    said = f"its process {first.process.pid} was killed; {prefect_server.run_on(second.data_root)['name']} goes on"
    assert after["state_type"] == "CRASHED" and after["state"]["message"].startswith(said)
    assert f"{record['name']} was still recorded as running, but {said}" in second.said()
    assert set(prefect_server.task_states(record["id"]).values()) == {"CRASHED"}


@pytest.mark.slow_fault
@pytest.mark.fault("zombie-run")
def test_a_run_that_ended_keeps_its_state_when_the_next_one_starts(prefect_server, start_run):
    first = start_run(prefect_server, 0.1)
    assert first.ended() == 0, first.said()
    record = prefect_server.run_on(first.data_root)
    assert start_run(prefect_server, 0.1).ended() == 0
    assert prefect_server.get(f"/flow_runs/{record['id']}")["state_type"] == "COMPLETED"


Lock = Callable[[str], subprocess.Popen]


@pytest.fixture
def lock_gpus(tmp_path: Path) -> Iterator[Lock]:
    """Starts a process that takes the lock of the GPUs, with device files in a folder, and keeps it."""
    started: list[subprocess.Popen] = []
    (tmp_path / "dev").mkdir()

    def start(name: str) -> subprocess.Popen:
        script = (
            "import sys, time; from pathlib import Path; from flows.locks import only_run_on_gpus; "
            "from tasks.system.lock_holder import Holder; from tasks.errors import PermanentError\n"
            f"folder = Path({str(tmp_path)!r})\n"
            "try:\n"
            f"  with only_run_on_gpus(Holder.me('id', {name!r}, folder / {name!r}), folder / 'dev', folder):\n"
            "    print('taken', flush=True); time.sleep(100)\n"
            "except PermanentError as error: print(error)\n"
        )
        command = [sys.executable, "-c", script]
        started.append(subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def first_line(process: subprocess.Popen) -> str:
    return process.stdout.readline().strip()


@pytest.mark.fault("two-runs-at-once")
def test_a_second_run_on_the_same_gpus_is_refused_whatever_its_data_root(lock_gpus, tmp_path):
    (tmp_path / "dev" / "nvidia0").touch()
    first = lock_gpus("kimi-1")
    assert first_line(first) == "taken"
    assert first_line(lock_gpus("kimi-2")) == (
        f"kimi-1 (process {first.pid}, data root {tmp_path / 'kimi-1'}) is using the GPUs of this machine. "
        "Wait until it has ended, stop it, and start again: what is finished is not repeated."
    )


@pytest.mark.fault("two-runs-at-once")
def test_the_gpus_are_free_as_soon_as_the_run_on_them_is_killed(lock_gpus, tmp_path):
    (tmp_path / "dev" / "nvidia0").touch()
    first = lock_gpus("kimi-1")
    assert first_line(first) == "taken"
    first.kill()
    first.wait()
    assert first_line(lock_gpus("kimi-2")) == "taken"


def test_a_machine_without_gpus_has_no_lock(lock_gpus, tmp_path):
    (tmp_path / "dev" / "nvidiactl").touch()
    assert [first_line(lock_gpus(name)) for name in ("small-1", "small-2")] == ["taken", "taken"]


def test_a_lock_file_that_is_torn_says_that_somebody_has_it(tmp_path):
    from flows.locks import only_run_on
    from tasks.errors import PermanentError
    from tasks.system.lock_holder import Holder

    me = Holder.me("id", "small-1", tmp_path)
    with only_run_on(tmp_path, me) as before:
        assert before is None
        (tmp_path / "run.lock").write_text(json.dumps("torn")[:3])
        with pytest.raises(PermanentError, match="another process, not known to be a hero run, is using"):
            only_run_on(tmp_path, me).__enter__()
