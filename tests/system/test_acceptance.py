"""Arms that were measured are not measured again."""

import dataclasses
import time
from pathlib import Path

import pytest

from tasks.errors import DeadlineReached, ServerGone, Stopped
from tasks.system import acceptance
from tasks.system.acceptance import Arm, measure_arms
from tasks.system.deadline import Deadline
from tests.system.small_data_root import small_run

ARMS = dict.fromkeys(("none", "base", "trained"))


@pytest.fixture
def measured(monkeypatch):
    """Which arms were measured, and which of them end in an error."""
    names: list[str] = []
    failing: dict[str, Exception] = {"trained": ServerGone("gone")}

    def measure(run, name, *_):
        names.append(name)
        if name in failing:
            raise failing[name]
        return Arm(name=name, drafts=4, accepted_tokens=3, accepted_at=[2, 1, 0], histograms={"id": [1, 2, 1]})

    monkeypatch.setattr(acceptance, "measure_arm", measure)
    return names, failing


def measure(run, arms=ARMS) -> list[Arm]:
    return measure_arms(run, Path("target"), arms, [], run.data_root / "arms", print, print)


def test_a_second_try_measures_only_what_the_first_did_not(measured, tmp_path):
    names, failing = measured
    with pytest.raises(ServerGone):
        measure(small_run(tmp_path))
    names.clear()
    failing.clear()
    arms = measure(small_run(tmp_path))
    assert (names, [arm.name for arm in arms]) == (["trained"], ["none", "base", "trained"])


def test_a_kept_arm_is_what_was_measured(measured, tmp_path):
    assert measure(small_run(tmp_path), {"base": None}) == measure(small_run(tmp_path), {"base": None})


def with_deadline(data_root: Path, seconds: float, **changes):
    deadline = Deadline(at_seconds=time.time() + seconds, wind_down_seconds=60.0, **changes)
    return dataclasses.replace(small_run(data_root), deadline=deadline)


def test_an_arm_that_a_deadline_stops_is_not_kept_and_those_before_are(measured, tmp_path, monkeypatch):
    deadline = Deadline(at_seconds=time.time() + 1.0, wind_down_seconds=0.4)
    quick = acceptance.measure_arm

    def measure_slowly(run, name, *arguments):
        if name == "trained":
            time.sleep(deadline.end_at_seconds - time.time())
            raise Stopped("the run is being stopped")
        return quick(run, name, *arguments)

    monkeypatch.setattr(acceptance, "measure_arm", measure_slowly)
    with pytest.raises(DeadlineReached, match="^evaluation 2 of 3 arms$"):
        measure(dataclasses.replace(small_run(tmp_path), deadline=deadline))
    assert sorted(path.stem for path in (tmp_path / "arms").iterdir()) == ["base", "none"]


def test_no_arm_is_begun_near_the_deadline(measured, tmp_path):
    names, _ = measured
    with pytest.raises(DeadlineReached, match="^evaluation 0 of 3 arms$"):
        measure(with_deadline(tmp_path, 30))
    assert names == []


def test_a_run_that_is_to_finish_measures_after_its_deadline(measured, tmp_path):
    measured[1].clear()
    assert len(measure(with_deadline(tmp_path, -30, then="finish"))) == 3


def test_a_run_that_is_cancelled_in_an_arm_is_not_at_its_deadline(measured, tmp_path):
    measured[1]["trained"] = Stopped("the run is being stopped")
    with pytest.raises(Stopped, match="the run is being stopped"):
        measure(with_deadline(tmp_path, 3600))
