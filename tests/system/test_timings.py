"""Seconds that were noted: what they say of the next plan, and planned against actual."""

import json
from pathlib import Path

import pytest

from flows.recipes import named
from tasks.system import timings
from tasks.system.engine_child import Progress
from tasks.system.plan.actual import Figures, figures_of, progress_rows
from tasks.system.run import Run
from tests.system.plans import plan


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(recipe=named("smollm2-cpu"), id="1", name="a-run", data_root=tmp_path, engine_python=Path("python"))


def test_what_is_noted_is_read_again(run):
    timings.note(run, "training", "stage", 12.5, tokens=3, written_bytes=4)
    (found,) = timings.read(run.data_root)
    assert (found.run, found.stage, found.what, found.seconds) == ("a-run", "training", "stage", 12.5)
    assert (found.tokens, found.written_bytes) == (3, 4)


def test_where_nothing_can_be_written_the_work_goes_on(run):
    (run.data_root / "plans").write_text("in the way")
    timings.note(run, "training", "stage", 1.0)
    assert timings.read(run.data_root) == []


def test_a_torn_line_is_passed_over(run):
    timings.note(run, "training", "stage", 1.0)
    with (run.data_root / "plans" / "timings.jsonl").open("a") as out:
        out.write('{"run": "a-r')
    assert len(timings.read(run.data_root)) == 1


def test_where_nothing_was_noted_there_is_nothing(tmp_path):
    assert timings.read(tmp_path) == [] and timings.measured_rates(tmp_path, "smollm2-cpu") == {}


def test_the_rate_of_a_stage_is_that_of_its_own_phase(run, monkeypatch):
    clock = iter([100.0, 160.0])
    monkeypatch.setattr("tasks.system.timings.time.monotonic", lambda: next(clock))
    handed: list[str] = []
    with timings.metered(run, "extraction", lambda progress: handed.append(progress.phase), 1000) as report:
        report(Progress("loading the target", 0, 0, "samples", {}))
        report(Progress("extraction", 200, 1000, "tokens", {}))
        report(Progress("extraction", 800, 1000, "tokens", {}))
    (found,) = timings.read(run.data_root)
    # 600 tokens in 60 s: what was there before this run does not count.
    assert (found.tokens, found.seconds) == (600, 60.0)
    assert handed == ["loading the target", "extraction", "extraction"]


def test_steps_count_for_the_tokens_that_they_stand_for(run, monkeypatch):
    clock = iter([0.0, 10.0])
    monkeypatch.setattr("tasks.system.timings.time.monotonic", lambda: next(clock))
    with timings.metered(run, "training", lambda _: None, 5000) as report:
        report(Progress("training", 0, 50, "steps", {}))
        report(Progress("training", 10, 50, "steps", {}))
    assert timings.measured_rates(run.data_root, "smollm2-cpu") == {"training": 100.0}


def test_work_that_fails_is_metered_as_far_as_it_came(run):
    with pytest.raises(OSError), timings.metered(run, "training", lambda _: None, 100) as report:
        report(Progress("training", 0, 2, "steps", {}))
        report(Progress("training", 1, 2, "steps", {}))
        raise OSError
    assert timings.read(run.data_root)[0].tokens == 50


def test_work_without_progress_is_no_measurement(run):
    with timings.metered(run, "training", lambda _: None, 100) as report:
        report(Progress("training", 2, 2, "steps", {}))
    assert timings.read(run.data_root) == []


def test_the_newest_rate_counts_unless_it_was_measured_on_too_little(run):
    timings.note(run, "extraction", "extraction", 10.0, tokens=1000)
    timings.note(run, "extraction", "extraction", 10.0, tokens=2000)
    timings.note(run, "extraction", "extraction", 1.0, tokens=10)
    assert timings.measured_rates(run.data_root, "smollm2-cpu") == {"extraction": 200.0}


def test_the_newest_load_counts(run):
    timings.note(run, "server-load", "load", 50.0)
    timings.note(run, "server-load", "load", 20.0)
    assert timings.measured_rates(run.data_root, "smollm2-cpu") == {"load": 20.0}


def test_another_recipes_rates_do_not_count(run):
    timings.note(run, "server-load", "load", 50.0)
    assert timings.measured_rates(run.data_root, "kimi-k25") == {}


def test_a_load_that_fails_is_no_measurement(run):
    with pytest.raises(OSError), timings.timed(run, "server-load", "load"):
        raise OSError
    assert timings.read(run.data_root) == []


def test_the_file_is_json_lines_with_units_in_the_names(run):
    timings.note(run, "training", "stage", 1.0)
    line = json.loads((run.data_root / "plans" / "timings.jsonl").read_text())
    assert set(line) == {"run", "recipe", "stage", "what", "seconds", "tokens", "written_bytes"}


PLANNED = {"inference": Figures(2000, 3600.0), "training": Figures(1000, 7200.0)}


def test_planned_and_actual_stand_side_by_side():
    rows = progress_rows(PLANNED, {"training": Figures(900, 3600.0)}, {"inference": Figures(1500, 5400.0)}, [])
    assert rows == [
        {
            "stage": "inference",
            "planned bytes": "2.00 kB",
            "written bytes": "1.50 kB",
            "planned hours": "1.0 h",
            "actual hours": "1.5 h",
            "expected to go": "-",
        },
        {
            "stage": "training",
            "planned bytes": "1.00 kB",
            "written bytes": "-",
            "planned hours": "2.0 h",
            "actual hours": "-",
            "expected to go": "1.0 h",
        },
        {
            "stage": "all",
            "planned bytes": "3.00 kB",
            "written bytes": "1.50 kB",
            "planned hours": "3.0 h",
            "actual hours": "1.5 h",
            "expected to go": "1.0 h",
        },
    ]


def test_the_cost_is_of_what_was_used_and_what_is_to_come():
    rows = progress_rows(PLANNED, {"training": Figures(0, 3600.0)}, {"inference": Figures(0, 5400.0)}, [30.0, 50.0])
    assert rows[-1]["actual hours"] == "1.5 h; 75 to 125 dollars in all"


def test_a_plans_figures_are_by_stage():
    figures = figures_of(plan())
    assert figures["extraction"].need_bytes == 2_064_027_700_000
    assert figures["training"].seconds == pytest.approx(5.8 * 3600, abs=180)
