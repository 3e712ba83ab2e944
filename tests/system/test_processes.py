"""The guard: nothing of a child outlives it, and the child's own end is seen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.errors import ChildDied, Stopped
from tasks.system.processes import STOP, Child, all_children_end, live_child, wait_for_exit


def start(tmp_path: Path, script: str, grace_seconds: float = 1.0) -> Child:
    return Child(["bash", "-c", script], tmp_path / "child.log", {}, grace_seconds)


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids_in(log: Path, count: int) -> list[int]:
    wait_until(lambda: log.exists() and len(log.read_text().split()) >= count)
    return [int(pid) for pid in log.read_text().split()]


def test_the_exit_code_is_the_commands(tmp_path):
    child = start(tmp_path, "exit 7")
    wait_until(lambda: child.exit is not None)
    assert child.exit.code == 7


def test_output_goes_to_the_log(tmp_path):
    child = start(tmp_path, "echo out; echo err >&2")
    wait_until(lambda: child.exit is not None)
    assert sorted(child.exit.log_tail.split()) == ["err", "out"]


def test_stop_ends_a_process_that_left_its_group(tmp_path):
    child = start(tmp_path, "setsid sleep 100 & echo $!; sleep 100")
    (pid,) = pids_in(child.log_path, 1)
    child.stop()
    assert not is_alive(pid)


def test_stop_ends_a_process_that_ignores_sigterm(tmp_path):
    child = start(tmp_path, "trap '' TERM; echo $$; while true; do sleep 1; done", grace_seconds=0.3)
    (pid,) = pids_in(child.log_path, 1)
    child.stop()
    assert not is_alive(pid)


def test_a_grandchild_does_not_outlive_its_killed_parent(tmp_path):
    child = start(tmp_path, "sleep 100 & echo $! $$; wait")
    grandchild, parent = pids_in(child.log_path, 2)
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: child.exit is not None)
    assert not is_alive(grandchild)


def test_children_die_with_a_killed_flow_process(tmp_path):
    log = tmp_path / "child.log"
    script = (
        "import time; from pathlib import Path; from tasks.system.processes import Child; "
        f"Child(['bash', '-c', 'echo $$; sleep 100'], Path({str(log)!r}), {{}}, 1.0); time.sleep(100)"
    )
    flow = subprocess.Popen([sys.executable, "-c", script])
    (pid,) = pids_in(log, 1)
    flow.kill()
    flow.wait()
    wait_until(lambda: not is_alive(pid))


def test_leaving_the_run_ends_what_it_started(tmp_path):
    with pytest.raises(RuntimeError), all_children_end():
        child = start(tmp_path, "echo $$; sleep 100")
        (pid,) = pids_in(child.log_path, 1)
        raise RuntimeError
    assert not is_alive(pid) and live_child(child.pid) is None


def test_leaving_the_run_leaves_earlier_children_alone(tmp_path):
    earlier = start(tmp_path, "sleep 100")
    with all_children_end():
        pass
    assert earlier.exit is None
    earlier.stop()


def test_a_child_without_progress_is_ended(tmp_path):
    STOP.clear()
    child = start(tmp_path, "echo stuck; sleep 100")
    with pytest.raises(ChildDied, match=r"no progress for 0 s.*\nstuck"):
        wait_for_exit(child, 0.3, lambda: False)
    assert child.exit is not None


def test_a_stop_of_the_run_ends_the_child_that_is_waited_for(tmp_path):
    child = start(tmp_path, "sleep 100")
    STOP.set()
    with pytest.raises(Stopped):
        wait_for_exit(child, 10, lambda: True)
    STOP.clear()
    assert child.exit is not None
