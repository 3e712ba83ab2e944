"""A stage that a deadline cuts short, on Prefect's own engine with a temporary API: no failure, no retry, no cache."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from prefect import flow
from prefect.runtime import flow_run
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness

from flows.deadline import AskedDeadline
from flows.recipes import named
from flows.run_deadline import deadline_of_this_run, ended_at_deadline, in_time, keeping
from tasks.errors import BadInput, ChildDied, DeadlineReached, ServerGone, Stopped
from tasks.policies import both, stage_task
from tasks.recipe import changed
from tasks.system import ledger
from tasks.system.deadline import NEVER, Deadline
from tasks.system.manifest import place, write_manifest
from tasks.system.processes import STOP, raise_if_stopping
from tasks.system.run import Product, Run, product_of


@pytest.fixture(scope="module", autouse=True)
def prefect_api():
    # Without heartbeats each flow call is a second shorter.
    with prefect_test_harness(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@pytest.fixture(autouse=True)
def results_of_this_test(tmp_path):
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        yield


def in_seconds(seconds: float, **changes) -> Deadline:
    return Deadline(at_seconds=time.time() + seconds, wind_down_seconds=60.0, **changes)


FAR, NEAR, HERE = 3600.0, 45.0, 0.0
"""Seconds to the deadline: nothing concerns it; it is winding down, and not ending; it has come."""


def due_in(run: Run, seconds: float) -> Run:
    return dataclasses.replace(run, deadline=in_seconds(seconds))


@pytest.fixture
def run(tmp_path) -> Run:
    recipe = named("smollm2-cpu")
    return Run(
        recipe=recipe,
        id="1",
        name="test",
        data_root=tmp_path / "data",
        engine_python=tmp_path,
        deadline=in_seconds(FAR),
    )


@dataclass
class Work:
    """A stage whose body ends in these ways, one after the other, and then makes its product."""

    ends: list[Exception] = field(default_factory=list)
    name: str = "work"
    begins_late: bool = False
    bodies: int = 0
    meanwhile: Callable[[], None] = lambda: None

    def task(self):
        @stage_task(
            self.name,
            place=lambda run: place(run.data_root, self.name, self.name, 1),
            need_bytes=lambda run: 0,
            retries=2,
            retry_seconds=0.01,
            timeout_hours=1,
            begins_late=self.begins_late,
        )
        def work(run: Run) -> Product:
            self.bodies += 1
            self.meanwhile()
            if self.ends:
                raise self.ends.pop(0)
            stage = place(run.data_root, self.name, self.name, 1)
            stage.folder.mkdir(parents=True, exist_ok=True)
            (stage.folder / "product").write_text("made")
            return product_of(stage, write_manifest(stage, ["product"], {}))

        return work

    def in_a_flow(self, run: Run) -> dict[str, str]:
        """The task run's state, in a flow run of its own; a failure is raised."""
        task = self.task()

        @flow
        def once() -> dict[str, str]:
            state = task(run, return_state=True)
            if state.is_failed():
                state.result()  # raises
            return {"type": state.type.value, "name": state.name, "message": state.message}

        return once()


CUT = {"type": "COMPLETED", "name": "Deadline", "message": "work 61 %, goes on at the next start"}


def test_it_ends_in_a_completed_state_of_that_name_that_says_how_far_it_came(run):
    assert Work([DeadlineReached("work 61 %")]).in_a_flow(run) == CUT


def test_it_is_not_tried_again_and_is_no_fault(run):
    work = Work([DeadlineReached("work 61 %")])
    work.in_a_flow(run)
    assert work.bodies == 1 and ledger.read(run.log_folder) == []


def test_the_next_run_does_not_find_it_cached(run):
    work = Work([DeadlineReached("work 61 %")])
    work.in_a_flow(run)
    assert work.in_a_flow(run)["name"] == "Completed" and work.in_a_flow(run)["name"] == "Cached"


def test_not_even_when_its_products_were_whole_when_it_was_cut_short(run):
    """Told to stop between its manifest and its return: the manifest counts, Prefect's record of the cut does not."""
    work = Work()
    work.in_a_flow(run)
    product = run.data_root / "work"
    kept = {path: path.read_bytes() for path in product.rglob("*") if path.is_file()}
    (manifest,) = product.rglob("manifest.json")
    manifest.unlink()
    work.ends = [DeadlineReached("work 100 %")]
    work.meanwhile = lambda: manifest.write_bytes(kept[manifest])
    assert work.in_a_flow(run)["name"] == "Deadline"
    task = work.task()

    @flow
    def again() -> Product:
        return task(run)

    assert again().folder == manifest.parent and work.bodies == 2


@pytest.mark.parametrize("seconds", [NEAR, HERE])
def test_a_stage_does_not_begin_when_the_deadline_is_near(run, seconds):
    work = Work()
    state = work.in_a_flow(due_in(run, seconds))
    assert (state["name"], state["message"], work.bodies) == (
        "Deadline",
        "work not begun, goes on at the next start",
        0,
    )


def test_one_that_is_finished_is_used_however_near_it_is(run):
    work = Work()
    work.in_a_flow(run)
    assert work.in_a_flow(due_in(run, HERE))["name"] == "Cached"


def test_one_that_takes_seconds_begins_all_the_same(run):
    assert Work(begins_late=True).in_a_flow(due_in(run, NEAR))["name"] == "Completed"


def test_a_run_that_is_to_finish_with_what_it_has_begins_its_stages(run):
    finishing = dataclasses.replace(run, deadline=in_seconds(0, then="finish"))
    assert Work().in_a_flow(finishing)["name"] == "Completed"


def test_work_that_is_told_to_stop_at_the_deadline_is_cut_short_although_it_does_not_say_so(run):
    work = Work([Stopped("the run is being stopped")], begins_late=True)
    state = work.in_a_flow(due_in(run, HERE))
    assert (state["name"], state["message"]) == ("Deadline", "work not finished, goes on at the next start")


def test_a_child_that_dies_because_the_deadline_ended_it_is_no_fault(run):
    work = Work([ChildDied("exit code 143")], begins_late=True, meanwhile=STOP.set)
    assert work.in_a_flow(due_in(run, HERE))["name"] == "Deadline"
    assert ledger.read(run.log_folder) == []


def test_a_run_that_is_cancelled_before_its_deadline_is_not_called_so(run):
    with pytest.raises(Stopped, match="the run is being stopped"):
        Work([Stopped("the run is being stopped")]).in_a_flow(run)


def test_a_fault_near_the_deadline_counts_and_the_next_start_is_the_other_try(run):
    work = Work([ServerGone("gone"), ServerGone("gone")], begins_late=True)
    state = work.in_a_flow(due_in(run, NEAR))
    assert (state["name"], work.bodies) == ("Deadline", 1)
    assert ledger.sentence(ledger.read(run.log_folder)) == "1 x ServerGone in work"


def test_a_permanent_error_near_the_deadline_fails_the_run(run):
    work = Work([BadInput("bad")], begins_late=True)
    with pytest.raises(BadInput):
        work.in_a_flow(due_in(run, NEAR))


def as_the_hero_run_does(run: Run, body: Callable[[Run], Product]):
    """The flow's state and what its caller gets."""

    @flow
    def hero() -> Product | str:
        try:
            return body(run)
        except DeadlineReached as reached:
            return ended_at_deadline(reached)

    state = hero(return_state=True)
    return state.type.value, state.name, state.message, state.result()


def test_the_flow_ends_in_a_state_of_that_name_too_and_its_caller_gets_the_message(run):
    task, message = Work([DeadlineReached("work 61 %")]).task(), "work 61 %, goes on at the next start"
    assert as_the_hero_run_does(run, task) == ("COMPLETED", "Deadline", message, message)


def test_of_two_stages_side_by_side_the_other_has_its_time_and_then_the_flow_ends(run):
    cut, other = Work([DeadlineReached("cut 5 %")], name="cut"), Work(name="other", meanwhile=lambda: time.sleep(0.5))
    first, second = cut.task(), other.task()
    found = as_the_hero_run_does(run, lambda run: both(first.submit(run), second.submit(run)))
    assert found[:3] == ("COMPLETED", "Deadline", "cut 5 %, goes on at the next start")
    assert list(run.data_root.glob("other/*/manifest.json"))


def test_a_failure_beside_a_stage_that_is_cut_short_is_the_flows(run):
    cut, failing = Work([DeadlineReached("cut 5 %")], name="cut"), Work([BadInput("no such drafter")], name="failing")
    first, second = cut.task(), failing.task()
    with pytest.raises(BadInput, match="no such drafter"):
        as_the_hero_run_does(run, lambda run: both(first.submit(run), second.submit(run)))


@pytest.mark.parametrize(
    ("seconds", "message"),
    [(HERE, "its time was over before it began"), (NEAR, "its time was over before it began"), (FAR, "work 61 %")],
)
def test_a_run_whose_time_is_over_before_it_begins_begins_nothing(run, seconds, message):
    def body(run: Run) -> Product:
        with keeping(in_seconds(seconds), lambda: None):
            return Work([DeadlineReached("work 61 %")]).task()(run)

    assert as_the_hero_run_does(run, body)[1:3] == ("Deadline", f"{message}, goes on at the next start")


def test_a_deadline_that_comes_between_two_stages_is_said_so(run):
    def body(run: Run) -> Product:
        deadline = Deadline(at_seconds=time.time() + 0.4, wind_down_seconds=0.2)
        with keeping(deadline, lambda: None):
            time.sleep(0.5)
            raise_if_stopping()
            raise AssertionError("the run was not told to stop")

    assert as_the_hero_run_does(run, body)[1:3] == ("Deadline", "between two stages, goes on at the next start")


@pytest.fixture
def due_in_the_past(monkeypatch):
    """A flow run that was scheduled for two hours ago."""
    monkeypatch.setitem(flow_run.FIELDS, "scheduled_start_time", lambda: datetime.now(UTC) - timedelta(hours=2))
    return f"{datetime.now() - timedelta(hours=1):%H:%M}"


def deadline_of_a_run(asked: AskedDeadline | None) -> Deadline:
    @flow
    def starting() -> Deadline:
        return deadline_of_this_run(asked)

    return starting()


def test_a_time_of_day_counts_from_when_the_run_was_due(due_in_the_past):
    assert deadline_of_a_run(AskedDeadline(stop_at=due_in_the_past)).is_ending


def test_a_run_that_is_tried_again_is_due_now(due_in_the_past, monkeypatch):
    monkeypatch.setitem(flow_run.FIELDS, "run_count", lambda: 2)
    assert not deadline_of_a_run(AskedDeadline(stop_at=due_in_the_past)).is_winding_down


def test_a_duration_counts_from_now(due_in_the_past):
    assert not deadline_of_a_run(AskedDeadline(after_hours=1)).is_winding_down


def test_a_run_without_a_deadline_has_none(run):
    assert deadline_of_a_run(None) == NEVER and in_time(run.recipe, NEVER) is run.recipe


def test_a_servers_time_of_grace_ends_before_the_deadline(run):
    recipe = changed(run.recipe, {"server": {"stop_grace_seconds": 300.0}})
    assert in_time(recipe, in_seconds(FAR)).server.stop_grace_seconds == 20.0
    assert in_time(recipe, in_seconds(FAR, then="finish")) is recipe
