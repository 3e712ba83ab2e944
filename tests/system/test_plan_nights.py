"""A plan spread over nights: what breaking off costs, computed by hand."""

import pytest

from tasks.system.plan.hours import StageHours
from tasks.system.plan.nights import BrokenOff, InNights, in_nights, nights_between

HOUR = 3600.0
LOAD = 0.5 * HOUR
TEN_HOURS = nights_between("21:00", "07:00")
# Nothing that needs the target begins in the last ten minutes, and training saves two before the end.
WITH_TARGET, TRAINING = 10 * HOUR - 600, 10 * HOUR - 120


def work(stage: str, hours: float) -> StageHours:
    return StageHours(stage, "work", hours * HOUR, "test")


def load(stage: str, times: int = 1) -> StageHours:
    return StageHours(stage, "loads", times * LOAD, "test", is_load=True)


def spread(*lines: StageHours) -> InNights:
    found = in_nights(lines, LOAD, TEN_HOURS)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [("20:00", "07:30", 11.5), ("01:00", "05:30", 4.5), ("00:00", "00:00", 24), ("22:15", "22:00", 23.75)],
)
def test_a_night_goes_past_midnight_or_not(begin, end, hours):
    assert nights_between(begin, end).seconds == hours * HOUR


def test_what_fits_is_one_night():
    assert spread(load("server-load"), work("inference", 5)) == InNights([], 5.5 * HOUR)


def test_every_night_that_goes_on_with_inference_loads_the_target_again():
    found = spread(load("server-load"), work("inference", 12))
    first = WITH_TARGET - LOAD
    assert found.broken_off == [BrokenOff("inference", pytest.approx(first / (12 * HOUR)))]
    assert found.last_seconds == pytest.approx(LOAD + 12 * HOUR - first)


def test_somebody_elses_server_is_not_loaded_again():
    assert spread(work("inference", 12)).last_seconds == pytest.approx(12 * HOUR - WITH_TARGET)


def test_training_goes_on_without_a_load_and_stops_later():
    assert spread(work("training", 12)).last_seconds == pytest.approx(12 * HOUR - TRAINING)


def test_an_arm_of_the_evaluation_that_does_not_fit_is_left_to_the_next_night():
    found = spread(work("training", 8), load("evaluation", 3), work("evaluation", 3))
    # Each arm takes an hour and a half: one fits after the training.
    assert found == InNights([BrokenOff("evaluation", pytest.approx(1 / 3))], 3 * HOUR)


def test_every_window_is_captured_and_trained_on_before_the_next():
    found = spread(load("extraction", 2), work("extraction", 8), work("training", 8))
    # 0.5 + 4 + 4 of the first window; of the second, what is left after another load.
    captured = 4 * HOUR + WITH_TARGET - 8.5 * HOUR - LOAD
    assert found.broken_off == [BrokenOff("extraction", pytest.approx(captured / (8 * HOUR)))]
    assert found.last_seconds == pytest.approx(LOAD + 8 * HOUR - captured + 4 * HOUR)


def test_nothing_to_do_takes_no_night():
    assert spread().count == 0


@pytest.mark.parametrize(
    "lines", [[load("server-load"), work("inference", 1)], [load("evaluation"), work("evaluation", 9)]]
)
def test_a_night_that_is_too_short_for_it_never_comes_to_an_end(lines):
    assert in_nights(lines, LOAD, nights_between("23:45", "00:15")) is None
