"""The inference task and a deadline: cut short and gone on with, or finished with what there is and asked again."""

import dataclasses
import itertools
import json
import threading
import time
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
from tasks.errors import BadProduct
from tasks.inference import inference
from tasks.stages import answers_journal, responses_stage
from tasks.system import deadline, generation, server_watch
from tasks.system.deadline import NEVER, Deadline
from tasks.system.run import Run
from tests.system.stub_server import Stub, answer, stub_server

PROMPTS = 40
IN_FLIGHT = 2
QUICK = 16
"""Prompts that are answered at once; the others only when the deadline is near."""


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
    rows = [{"conversations": [{"from": "human", "value": f"Question {i}?"}], "source": "test"} for i in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = {"source": str(tmp_path / "rows.jsonl"), "training_samples": PROMPTS - 4, "validation_samples": 4}
    changes = {"prompts": {**prompts, "evaluation_samples": 5}, "inference": {"in_flight": IN_FLIGHT}}
    recipe = named("smollm2-cpu", changes)
    return Run(recipe=recipe, id="1", name="test", data_root=tmp_path / "data", engine_python=Path("python"))


class Clock:
    """Stands still until it is set; whatever else is asked of it is the real one's."""

    def __init__(self) -> None:
        self.seconds = time.time()

    def time(self) -> float:
        return self.seconds

    def __getattr__(self, name: str):
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    for module in (deadline, generation, server_watch):
        monkeypatch.setattr(module, "time", clock)
    return clock


def with_deadline(run: Run, clock: Clock, then: str) -> Run:
    return dataclasses.replace(
        run, deadline=Deadline(at_seconds=clock.seconds + 3600, wind_down_seconds=600, then=then)
    )


def ask(run: Run, stub: Stub):
    """The task run's state in a flow run of its own."""
    with stub_server(stub) as served:

        @flow
        def once() -> dict:
            state = inference(run, served.endpoint, return_state=True)
            result = state.result(raise_on_failure=False)
            return {"name": state.name, "message": state.message, "result": result}

        return once()


def slow_after(number: int, run: Run, clock: Clock) -> Stub:
    """A server that answers so many prompts at once, and those in flight then when it is too late to ask more."""
    stub = Stub()

    def winds_down() -> None:
        clock.seconds = run.deadline.wind_down_at_seconds

    calls, all_in_flight = itertools.count(), threading.Barrier(IN_FLIGHT, winds_down)

    def decide(text: str, before: int):
        if next(calls) >= number:
            all_in_flight.wait(60)
        return 200, answer()

    stub.decide = decide
    return stub


def journal_ids(run: Run) -> list[str]:
    return [json.loads(line)["sample_id"] for line in answers_journal(run).read_text().splitlines()]


@pytest.fixture
def cut(run, clock):
    """A first night."""
    short = with_deadline(run, clock, "stop")
    return ask(short, slow_after(QUICK, short, clock))


def test_it_says_how_much_of_its_prompts_is_answered(cut, run):
    answered = QUICK + IN_FLIGHT
    assert cut["name"] == "Deadline" and len(journal_ids(run)) == answered
    assert cut["message"] == f"inference {100 * answered // PROMPTS} %, goes on at the next start"
    assert responses_stage(run).manifest() is None


def test_the_next_night_asks_the_others_alone(cut, run):
    stub = Stub()
    assert ask(run, stub)["name"] == "Completed"
    ids = journal_ids(run)
    assert len(ids) == len(set(ids)) == PROMPTS and stub.asked.total() == PROMPTS - QUICK - IN_FLIGHT


@pytest.fixture
def finished(run, clock):
    """A run that goes on with what it has."""
    short = with_deadline(run, clock, "finish")
    return ask(short, slow_after(QUICK, short, clock))


def test_it_can_finish_with_what_it_has(finished):
    facts = finished["result"].facts
    answered = QUICK + IN_FLIGHT
    assert finished["name"] == "Completed"
    assert (facts["training_samples"], facts["validation_samples"]) == (answered - 4, 4)
    assert facts["unasked_prompts"] == PROMPTS - answered


def test_a_later_run_takes_that_set_as_it_is(finished, run):
    stub = Stub()
    assert ask(run, stub)["name"] == "Cached" and stub.asked.total() == 0


def test_refreshed_it_asks_the_others_alone_and_is_another_set(finished, run):
    stub = Stub()
    again = ask(dataclasses.replace(run, id="2", refresh=("inference",)), stub)
    assert (again["name"], again["result"].facts["unasked_prompts"]) == ("Completed", 0)
    assert stub.asked.total() == PROMPTS - QUICK - IN_FLIGHT and len(set(journal_ids(run))) == PROMPTS
    assert again["result"].content_sha256 != finished["result"].content_sha256


def test_too_few_answers_are_refused_and_kept(run, clock):
    short = with_deadline(run, clock, "finish")
    failed = ask(short, slow_after(4, short, clock))
    assert isinstance(failed["result"], BadProduct) and "Start again with more time" in str(failed["result"])
    assert len(journal_ids(run)) == 4 + IN_FLIGHT


def test_the_deadline_is_part_of_no_identity(run, clock):
    short = with_deadline(run, clock, "finish")
    assert short.deadline != run.deadline == NEVER
    assert responses_stage(short) == responses_stage(run) and answers_journal(short) == answers_journal(run)
