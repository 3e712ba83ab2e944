"""Hours and dollars: the reference run's, computed by hand."""

import pytest

from flows.recipes import named
from tasks.system.acceptance import ARM_NAMES
from tasks.system.plan.hours import EVALUATION_ARMS, costs_dollars, rates_of, stage_hours
from tasks.system.plan.needs import OnDisk
from tests.system.plans import SERVED, kimi, plan, tokens_of


def hours(recipe, samples, there=SERVED, windows=1, measured=None):
    lines = stage_hours(recipe, tokens_of(recipe, samples), rates_of(recipe.hardware, measured or {}), there, windows)
    return {(line.stage, line.is_load): line.hours for line in lines}


@pytest.mark.parametrize(
    ("stage", "expected"),
    # 74.65M / 1,536 tok/s; 94.2M / 2,750 tok/s; 94.2M / 4,511 tok/s.
    [("inference", 13.5), ("extraction", 9.5), ("training", 5.8)],
)
def test_the_reference_runs_stages_take_the_published_hours(stage, expected):
    assert hours(kimi(), 25_000)[stage, False] == pytest.approx(expected, abs=0.05)


def test_the_reference_runs_work_takes_28_8_hours():
    found = hours(kimi(), 25_000)
    assert sum(found[stage, False] for stage in ("inference", "extraction", "training")) == pytest.approx(
        28.8, abs=0.05
    )


def test_10_000_samples_train_in_2_3_hours():
    assert hours(kimi(), 10_000)["training", False] == pytest.approx(2.3, abs=0.05)


def test_every_load_has_its_line():
    loads = {stage: h for (stage, is_load), h in hours(kimi(), 25_000).items() if is_load}
    # 22 minutes each: one to serve, one to extract, one for each of three arms.
    assert loads == pytest.approx({"server-load": 22 / 60, "extraction": 22 / 60, "evaluation": 66 / 60})


def test_somebody_elses_server_is_not_loaded():
    assert ("server-load", True) not in hours(kimi(server={"endpoint": "http://127.0.0.1:8000"}), 25_000)


def test_every_window_is_a_load_more():
    assert hours(kimi(), 25_000, windows=3)["extraction", True] == pytest.approx(66 / 60)


def test_the_evaluation_has_a_line_for_each_arm_that_is_measured():
    assert len(ARM_NAMES) == EVALUATION_ARMS


def test_finished_stages_take_no_time():
    there = OnDisk(finished=frozenset({"server-load", "inference"}))
    assert {stage for stage, _ in hours(kimi(), 25_000, there)} == {"extraction", "training", "evaluation"}


def test_answers_that_are_in_the_journal_are_not_asked_again():
    there = OnDisk(target_is_ready=True, answered_samples=12_500)
    assert hours(kimi(), 25_000, there)["inference", False] == pytest.approx(13.5 / 2, abs=0.05)


def test_epochs_multiply_the_training():
    once, thrice = hours(kimi(), 1000), hours(kimi(training={"epochs": 3}), 1000)
    assert thrice["training", False] == pytest.approx(3 * once["training", False])


def test_a_measured_rate_takes_the_place_of_the_stated_one_and_is_called_so():
    lines = stage_hours(kimi(), tokens_of(kimi(), 25_000), rates_of(kimi().hardware, {"generation": 3072.0}), SERVED)
    (line,) = [line for line in lines if line.stage == "inference"]
    assert line.hours == pytest.approx(6.75, abs=0.01)
    assert line.basis == "74,650,000 tokens at 3,072 tok/s, measured"


def test_rates_say_whether_they_are_stated_or_assumed():
    rates = rates_of(kimi().hardware, {})
    assert {name: rate.basis for name, rate in rates.items()} == {
        "load": "stated",
        "generation": "stated",
        "extraction": "stated",
        "training": "stated",
        "evaluation": "assumed",
    }


def test_every_throughput_of_the_rented_machine_is_an_assumption():
    assert {rate.basis for rate in rates_of(named("kimi-k25-b300").hardware, {}).values()} == {"assumed"}


def test_the_rented_machine_takes_five_to_six_hours_and_150_to_300_dollars():
    rented = plan(recipe=named("kimi-k25-b300"), free=10e12)
    low, high = costs_dollars(rented.hours, [30.0, 50.0])
    assert 5 <= rented.total_seconds / 3600 <= 6
    assert 150 <= low < high <= 300


def test_an_assumption_of_the_recipe_names_a_field():
    for name in ("kimi-k25", "kimi-k25-b300", "smollm2-cpu"):
        hardware = named(name).hardware
        assert set(hardware.assumed) <= set(vars(hardware))
