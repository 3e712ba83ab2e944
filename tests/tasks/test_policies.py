"""What a stage declares, on Prefect's own engine with a temporary API."""

import dataclasses
import errno
from dataclasses import dataclass
from pathlib import Path

import pytest
from prefect import flow
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness

from flows.recipes import named
from tasks.errors import BadInput, ChildDied, GaveUp, NotEnoughDisk, ServerGone, Stopped
from tasks.policies import both, stage_task
from tasks.system import ledger
from tasks.system.manifest import place, write_manifest
from tasks.system.processes import STOP
from tasks.system.run import USES_FOLDER, Product, Run, product_of


@pytest.fixture(scope="module", autouse=True)
def prefect_api():
    # Without heartbeats each flow call is a second shorter.
    with prefect_test_harness(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@pytest.fixture(autouse=True)
def results_of_this_test(tmp_path):
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        yield


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(
        recipe=named("smollm2-cpu"), id="1", name="test", data_root=tmp_path / "data", engine_python=Path("python")
    )


@dataclass
class Work:
    """A stage that writes one file, and counts how often its body ran."""

    bodies: int = 0
    failures: tuple[Exception, ...] = ()
    need_bytes: int = 0
    digest_parts: str = "x"
    stops_first: bool = False
    """The run is told to stop while the body works."""

    def task(self, retries: int = 2):
        def where(run):
            return place(run.data_root, "work", "work", 1, parts=self.digest_parts)

        @stage_task(
            "work",
            place=where,
            need_bytes=lambda run: self.need_bytes,
            retries=retries,
            retry_seconds=0.01,
            timeout_hours=1,
        )
        def work(run: Run) -> Product:
            self.bodies += 1
            if self.stops_first:
                STOP.set()
            if self.bodies <= len(self.failures):
                raise self.failures[self.bodies - 1]
            stage = where(run)
            stage.folder.mkdir(parents=True, exist_ok=True)
            (stage.folder / "product").write_text("made")
            return product_of(stage, write_manifest(stage, ["product"], {"body": self.bodies}))

        return work

    def in_a_flow(self, run: Run) -> tuple[str, Product]:
        """The task run's state name and its result, in a flow run of its own."""
        task = self.task()

        @flow
        def once():
            state = task(run, return_state=True)
            return state.name, state.result()

        return once()


@pytest.mark.fault("errors-cross-edges")
def test_the_second_run_is_cached_and_gives_the_same_record(run):
    work = Work()
    first, second = work.in_a_flow(run), work.in_a_flow(run)
    assert (first[0], second[0], work.bodies) == ("Completed", "Cached", 1)
    assert first[1] == second[1]


def test_a_deleted_product_is_made_again(run):
    work = Work()
    _, product = work.in_a_flow(run)
    (product.folder / "product").unlink()
    assert work.in_a_flow(run)[0] == "Completed" and work.bodies == 2


def test_after_a_product_was_made_again_it_is_cached_again(run):
    work = Work()
    _, product = work.in_a_flow(run)
    (product.folder / "product").unlink()
    work.in_a_flow(run)
    assert work.in_a_flow(run)[0] == "Cached" and work.bodies == 2


def test_another_identity_is_another_product(run):
    work = Work()
    work.in_a_flow(run)
    work.digest_parts = "y"
    assert work.in_a_flow(run)[0] == "Completed"


def test_a_transient_error_is_retried(run):
    work = Work(failures=(ServerGone("gone"), ServerGone("gone")))
    assert work.in_a_flow(run)[0] == "Completed" and work.bodies == 3


@pytest.mark.fault("errors-cross-edges")
def test_a_permanent_error_is_not_retried(run):
    work = Work(failures=(BadInput("bad"),) * 3)
    with pytest.raises(BadInput, match="bad"):
        work.in_a_flow(run)
    assert work.bodies == 1


@pytest.mark.fault("cancelled-in-any-stage")
def test_a_child_that_dies_because_the_run_stops_is_neither_a_fault_nor_tried_again(run):
    work = Work(failures=(ChildDied("exit code 143"),), stops_first=True)
    with pytest.raises(Stopped):
        work.in_a_flow(run)
    assert work.bodies == 1 and ledger.read(run.log_folder) == []


def test_a_bug_is_not_retried(run):
    work = Work(failures=(KeyError("oops"),) * 3)
    with pytest.raises(KeyError):
        work.in_a_flow(run)
    assert work.bodies == 1


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_stage_that_does_not_fit_is_refused_before_its_body(run):
    work = Work(need_bytes=10**18)
    with pytest.raises(NotEnoughDisk, match="work needs 1e\\+03 PB|work needs 1000 PB"):
        work.in_a_flow(run)
    assert work.bodies == 0


def test_a_finished_stage_needs_no_room(run):
    work = Work()
    work.in_a_flow(run)
    work.need_bytes = 10**18
    for record in (run.data_root / "generations").iterdir():  # Prefect's own record is lost
        record.unlink()
    assert work.in_a_flow(run)[0] == "Completed" and work.bodies == 1


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_volume_that_fills_up_in_a_stage_is_named_and_not_tried_again(run):
    work = Work(failures=(OSError(errno.ENOSPC, "No space left on device", "states/x"),) * 3)
    with pytest.raises(NotEnoughDisk, match=r"the volume filled up while states/x was written: .* are free"):
        work.in_a_flow(run)
    assert work.bodies == 1


def test_a_refreshed_stage_is_made_again(run):
    work = Work()
    work.in_a_flow(run)
    again = dataclasses.replace(run, id="2", refresh=("work",))
    assert work.in_a_flow(again)[0] == "Completed" and work.bodies == 2


def test_a_stage_is_refreshed_once_a_flow_run(run):
    work = Work()
    again = dataclasses.replace(run, refresh=("work",))
    work.in_a_flow(again)
    assert work.in_a_flow(again)[0] == "Cached" and work.bodies == 1


def test_what_was_refreshed_is_used_by_the_next_run(run):
    work = Work()
    work.in_a_flow(dataclasses.replace(run, refresh=("work",)))
    assert work.in_a_flow(dataclasses.replace(run, id="2"))[0] == "Cached"


CRASH = (
    "tasks.eagle3.train ended with exit code {} and no outcome in phase 'training', at {} of 500 steps. Log /{}:\n.."
)


@pytest.mark.fault("same-failure-twice")
def test_a_child_that_dies_twice_in_the_same_way_is_not_tried_a_third_time(run):
    work = Work(failures=tuple(ChildDied(CRASH.format(137, 40, i)) for i in range(3)))
    with pytest.raises(GaveUp, match=r"the same failure twice in a row, so work is not tried again\. tasks\.eagle3"):
        work.in_a_flow(run)
    assert work.bodies == 2


@pytest.mark.fault("same-failure-twice")
@pytest.mark.parametrize(("code", "step"), [(1, 40), (137, 80)], ids=["another cause", "progress in between"])
def test_two_failures_that_differ_are_two_failures(run, code, step):
    work = Work(failures=(ChildDied(CRASH.format(137, 40, 0)), ChildDied(CRASH.format(code, step, 1))))
    if code != 137:
        work.failures = (work.failures[0], ChildDied("vLLM was killed by a signal"))
    assert work.in_a_flow(run)[0] == "Completed" and work.bodies == 3


def test_how_often_each_fault_happened_is_in_the_ledger(run):
    Work(failures=(ServerGone("gone"), ServerGone("gone"))).in_a_flow(run)
    assert ledger.sentence(ledger.read(run.log_folder)) == "2 x ServerGone in work"


def test_the_products_that_a_run_uses_are_noted_once_also_when_they_are_cached(run):
    work = Work()
    _, product = work.in_a_flow(run)
    work.in_a_flow(run)
    noted = (run.data_root / USES_FOLDER / f"{run.name}.txt").read_text().splitlines()
    assert noted == [str(product.folder.relative_to(run.data_root))]


@pytest.mark.fault("download-fails-while-loading")
def test_the_first_failure_of_two_stages_is_the_flows(run):
    failing = Work(failures=(BadInput("no such drafter"),), digest_parts="failing").task()
    fine = Work(digest_parts="fine").task()

    @flow
    def two():
        return both(fine.submit(run), failing.submit(run))

    with pytest.raises(BadInput, match="no such drafter"):
        two()
