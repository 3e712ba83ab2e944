"""The guard: nothing of a child outlives it, and the child's own end is seen."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.errors import ChildDied, Stopped
from tasks.system import guard
from tasks.system.orphans import RECORD_SUFFIX, end_orphans, end_unguarded
from tasks.system.processes import STOP, Child, Limits, all_children_end, wait_for_exit


def start(tmp_path: Path, script: str, grace_seconds: float = 1.0) -> Child:
    return Child(["bash", "-c", script], tmp_path / "child.log", {}, grace_seconds)


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    return guard.identity(pid) is not None


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


@pytest.mark.fault("sigterm-lost-in-startup")
def test_stop_ends_a_process_that_left_its_group(tmp_path):
    child = start(tmp_path, "setsid sleep 100 & echo $!; sleep 100")
    (pid,) = pids_in(child.log_path, 1)
    child.stop()
    assert not is_alive(pid)


@pytest.mark.fault("sigterm-lost-in-startup")
def test_stop_ends_a_process_that_ignores_sigterm(tmp_path):
    child = start(tmp_path, "trap '' TERM; echo $$; while true; do sleep 1; done", grace_seconds=0.3)
    (pid,) = pids_in(child.log_path, 1)
    child.stop()
    assert not is_alive(pid)


@pytest.mark.fault("engine-orphans")
def test_a_grandchild_does_not_outlive_its_killed_parent(tmp_path):
    child = start(tmp_path, "sleep 100 & echo $! $$; wait")
    grandchild, parent = pids_in(child.log_path, 2)
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: child.exit is not None)
    assert not is_alive(grandchild)


@pytest.mark.fault("flow-killed-with-server")
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


@pytest.mark.fault("cancelled-in-any-stage")
def test_leaving_the_run_ends_what_it_started(tmp_path):
    with pytest.raises(RuntimeError), all_children_end():
        child = start(tmp_path, "echo $$; sleep 100")
        (pid,) = pids_in(child.log_path, 1)
        raise RuntimeError
    assert not is_alive(pid) and child.exit is not None


def test_leaving_the_run_leaves_earlier_children_alone(tmp_path):
    earlier = start(tmp_path, "sleep 100")
    with all_children_end():
        pass
    assert earlier.exit is None
    earlier.stop()


@pytest.mark.fault("task-timeout-does-not-stop")
def test_a_child_without_progress_is_ended(tmp_path):
    STOP.clear()
    child = start(tmp_path, "echo stuck; sleep 100")
    with pytest.raises(ChildDied, match=r"no progress for 0 s.*\nstuck"):
        wait_for_exit(child, Limits(stall_seconds=0.3, total_seconds=60), lambda: False)
    assert child.exit is not None


@pytest.mark.fault("cancelled-in-any-stage")
def test_a_stop_of_the_run_ends_the_child_that_is_waited_for(tmp_path):
    child = start(tmp_path, "sleep 100")
    STOP.set()
    with pytest.raises(Stopped):
        wait_for_exit(child, Limits(stall_seconds=10, total_seconds=60), lambda: True)
    STOP.clear()
    assert child.exit is not None


def record_of(log: Path) -> Path:
    return log.with_name(log.name + RECORD_SUFFIX)


def recorded(log: Path, pid: int) -> bool:
    return record_of(log).exists() and str(pid) in record_of(log).read_text()


@pytest.fixture
def orphan(tmp_path):
    """A process whose flow and whose guard were both killed with SIGKILL."""
    log = tmp_path / "run" / "child.log"
    script = (
        "import time; from pathlib import Path; from tasks.system.processes import Child; "
        f"child = Child(['bash', '-c', 'echo $$; sleep 100'], Path({str(log)!r}), {{}}, 1.0); "
        f"Path({str(tmp_path / 'guard')!r}).write_text(str(child.pid)); time.sleep(100)"
    )
    flow = subprocess.Popen([sys.executable, "-c", script])
    (pid,) = pids_in(log, 1)
    wait_until(lambda: recorded(log, pid) and (tmp_path / "guard").exists())
    guard_pid = int((tmp_path / "guard").read_text())
    flow.kill()
    os.kill(guard_pid, signal.SIGKILL)
    flow.wait()
    wait_until(lambda: not is_alive(guard_pid))
    yield pid
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.fault("engine-orphans")
def test_what_outlived_flow_and_guard_is_ended_by_the_next_run(tmp_path, orphan):
    assert is_alive(orphan)
    (said,) = end_orphans(tmp_path)
    assert str(orphan) in said and not is_alive(orphan)


@pytest.mark.fault("engine-orphans")
def test_a_like_process_that_is_not_on_record_is_left_alone(tmp_path, orphan):
    other = subprocess.Popen(["bash", "-c", "echo $$; sleep 100"], stdout=subprocess.DEVNULL)
    end_orphans(tmp_path)
    assert other.poll() is None
    other.kill()
    other.wait()


@pytest.mark.fault("engine-orphans")
def test_a_process_that_got_a_recorded_id_later_is_left_alone(tmp_path):
    other = subprocess.Popen(["sleep", "100"])
    pid, start_ticks = guard.identity(other.pid)
    facts = {"boot": guard.boot_id(), "guard": [1, -1], "command": ["vllm"], "members": [[pid, start_ticks - 1]]}
    record_of(tmp_path / "server.log").write_text(json.dumps(facts))
    assert end_orphans(tmp_path) == [] and other.poll() is None
    other.kill()
    other.wait()


@pytest.mark.fault("engine-orphans")
def test_a_record_of_another_boot_ends_nothing(tmp_path):
    other = subprocess.Popen(["sleep", "100"])
    facts = {"boot": "another", "guard": [1, -1], "command": ["vllm"], "members": [guard.identity(other.pid)]}
    record_of(tmp_path / "server.log").write_text(json.dumps(facts))
    assert end_orphans(tmp_path) == [] and other.poll() is None
    other.kill()
    other.wait()


def test_what_a_killed_guard_left_is_ended_by_its_log(tmp_path, orphan):
    assert end_unguarded(tmp_path / "run" / "child.log") and not is_alive(orphan)


def test_what_a_living_guard_guards_is_left_alone(tmp_path):
    child = start(tmp_path, "echo $$; sleep 100")
    (pid,) = pids_in(child.log_path, 1)
    wait_until(lambda: recorded(child.log_path, pid))
    assert end_unguarded(child.log_path) == [] and child.exit is None
    child.stop()


@pytest.mark.fault("engine-orphans")
def test_a_killed_guard_leaves_nothing_while_the_flow_lives(tmp_path):
    child = start(tmp_path, "echo $$; sleep 100")
    (pid,) = pids_in(child.log_path, 1)
    wait_until(lambda: recorded(child.log_path, pid))
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: child.exit is not None)
    assert not is_alive(pid)


def test_a_child_that_ended_leaves_no_record(tmp_path):
    child = start(tmp_path, "exit 0")
    wait_until(lambda: child.exit is not None)
    assert not record_of(child.log_path).exists()


@pytest.mark.fault("chatty-child")
def test_a_log_that_grows_without_end_is_moved_aside_and_begun_anew(tmp_path):
    script = "head -c 3000000 /dev/zero | tr '\\0' x; sleep 3; echo the end"
    child = Child(["bash", "-c", script], tmp_path / "child.log", {}, log_limit_bytes=1_000_000)
    wait_until(lambda: child.exit is not None)
    assert child.exit.log_tail.endswith("the end") and child.log_path.stat().st_size < 1_000_000


@pytest.mark.fault("chatty-child")
def test_a_child_that_prints_fifty_megabytes_is_not_blocked(tmp_path):
    child = Child(["bash", "-c", "head -c 50000000 /dev/zero"], tmp_path / "child.log", {}, log_limit_bytes=1_000_000)
    wait_until(lambda: child.exit is not None)
    assert child.exit.code == 0


@pytest.mark.fault("task-timeout-does-not-stop")
def test_a_child_that_is_not_done_in_time_is_ended_whatever_its_progress(tmp_path):
    STOP.clear()
    child = start(tmp_path, "echo busy; sleep 100")
    with pytest.raises(ChildDied, match=r"not done after 0 s.*\nbusy"):
        wait_for_exit(child, Limits(stall_seconds=60, total_seconds=0.3), lambda: True)
    assert child.exit is not None
