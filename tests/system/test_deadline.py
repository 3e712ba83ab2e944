"""A run's deadline: the order of its moments, and that nothing outlives it."""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.errors import DeadlineReached, Stopped
from tasks.system import guard
from tasks.system.deadline import NEVER, Deadline, kept, wind_down_seconds
from tasks.system.engine_child import run_in_engine
from tasks.system.processes import STOP, Child, Limits, all_children_end, wait_for_exit

LONG = Limits(stall_seconds=600, total_seconds=600)


@pytest.fixture(autouse=True)
def no_stop_is_left():
    yield
    STOP.clear()


def in_seconds(seconds: float, wind_down: float = 4.0, **changes) -> Deadline:
    return Deadline(at_seconds=time.time() + seconds, wind_down_seconds=wind_down, **changes)


@pytest.mark.parametrize("wind_down", [6.0, 36.0, 90.0, 600.0])
def test_its_moments_are_in_their_order(wind_down):
    deadline = Deadline(at_seconds=10_000.0, wind_down_seconds=wind_down)
    moments = [
        deadline.wind_down_at_seconds,
        deadline.save_at_seconds,
        deadline.asking.wait_seconds,
        deadline.end_at_seconds,
        deadline.at_seconds - deadline.grace_seconds,
        deadline.at_seconds,
    ]
    assert moments == sorted(moments) and deadline.end_at_seconds < moments[4]


def test_prompts_are_sent_until_the_winding_down_begins():
    deadline = Deadline(at_seconds=10_000.0, wind_down_seconds=600.0)
    assert deadline.asking.send_seconds == deadline.wind_down_at_seconds == 9400.0


def test_training_saves_later_than_that_for_a_save_takes_seconds():
    assert Deadline(at_seconds=10_000.0, wind_down_seconds=600.0).save_at_seconds == 9880.0


@pytest.mark.parametrize(("whole_hours", "expected"), [(11.5, 600.0), (0.05, 36.0), (-1.0, 0.0)])
def test_a_short_run_winds_down_for_a_fifth_of_its_time_at_most(whole_hours, expected):
    assert wind_down_seconds(600.0, whole_hours * 3600) == pytest.approx(expected)


def test_a_run_without_one_never_winds_down():
    assert not NEVER.is_winding_down and not NEVER.is_ending


def test_a_run_that_is_to_finish_has_none_after_its_inference():
    finishing = in_seconds(-1, then="finish")
    assert finishing.is_winding_down and finishing.of_stages == NEVER


def test_one_that_has_passed_is_winding_down_and_ending():
    passed = in_seconds(-1)
    assert passed.is_winding_down and passed.is_ending


def stubborn(log: Path) -> Child:
    """A child that ignores SIGTERM, with one of its own that does, too."""
    script = "trap '' TERM; (trap '' TERM; while true; do sleep 1; done) & echo up; while true; do sleep 1; done"
    child = Child(["bash", "-c", script], log, {}, grace_seconds=0.3)
    while "up" not in log.read_text():
        time.sleep(0.02)
    return child


def test_work_is_told_to_stop_before_the_deadline(tmp_path):
    deadline = in_seconds(1.5, wind_down=2.0)
    with all_children_end() as end, kept(deadline, end, lambda _: None):
        child = Child(["sleep", "100"], tmp_path / "log", {}, 0.3)
        with pytest.raises(Stopped):
            wait_for_exit(child, LONG, lambda: False)
        assert time.time() < deadline.at_seconds


def test_children_are_gone_at_the_deadline_although_nobody_who_works_looks_up(tmp_path):
    """The thread that works hangs in a call that cannot be told to stop; the child ignores SIGTERM."""
    deadline = in_seconds(2, wind_down=2.0)
    with all_children_end() as end, kept(deadline, end, lambda _: None):
        child = stubborn(tmp_path / "log")
        below = [known for pid in guard.descendants(child.pid) if (known := guard.identity(pid))]
        subprocess.run(["sleep", str(deadline.at_seconds - time.time())], check=True)
        assert below and [pid for pid, began in below if guard.identity(pid) == (pid, began)] == []


def test_children_that_were_there_before_the_run_stay(tmp_path):
    before = Child(["sleep", "100"], tmp_path / "log", {}, 0.3)
    with all_children_end() as end:
        end()
    assert before.exit is None
    before.stop()


def test_a_run_that_is_to_finish_is_not_told_to_stop():
    said: list[str] = []
    with all_children_end() as end, kept(in_seconds(-1, then="finish"), end, said.append):
        time.sleep(0.3)
        assert not STOP.is_set()
    assert said == ["the deadline is near: no more prompts are asked, and the run goes on with the answers so far"]


def test_a_run_that_ends_in_time_hears_nothing_of_its_deadline():
    said: list[str] = []
    with kept(in_seconds(100), lambda: said.append("ended"), said.append):
        pass
    assert said == [] and not [t for t in threading.enumerate() if t.name == "deadline"]


CHILD = """
import time
from dataclasses import dataclass
from tasks.errors import DeadlineReached
from tasks.system.child import child_main

@dataclass(frozen=True)
class Nothing:
    pass

def work(spec, reporter):
    while not reporter.is_winding_down:
        time.sleep(0.01)
    raise DeadlineReached("extraction 61 %")

child_main(Nothing, work)
"""


def test_a_child_is_told_from_the_start_when_to_wind_down_and_says_how_far_it_came(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Nothing:
        pass

    (tmp_path / "winding_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    at = time.time() + 0.5
    arguments = (Path(sys.executable), "winding_child", Nothing(), Nothing, tmp_path / "logs", lambda _: None, {})
    with pytest.raises(DeadlineReached) as reached:
        run_in_engine(*arguments, wind_down_at_seconds=at)
    assert str(reached.value) == "extraction 61 %" and time.time() >= at
