"""The event that says that a run gets on."""

from types import SimpleNamespace

import pytest

from tasks import progress_events
from tasks.progress_events import PROGRESS_EVENT, ProgressEvents
from tasks.system.engine_child import Progress
from tests.flows.live import wait_until

TINY_STAGES = {"server-load", "drafter-download", "inference", "training"}


def test_every_stage_of_a_run_says_that_it_gets_on_and_of_which_flow(prefect_server, start_run):
    run = start_run(prefect_server, 3)
    assert run.ended() == 0, run.said()
    record = prefect_server.run_on(run.data_root)
    wanted = {"occurred": {"since": record["created"]}, "event": {"name": [PROGRESS_EVENT]}}

    def events() -> list[dict]:
        found = prefect_server.post("/events/filter", filter=wanted, limit=50)["events"]
        ours = [event for event in found if event["resource"]["prefect.resource.name"] == record["name"]]
        return ours if {event["payload"]["stage"] for event in ours} == TINY_STAGES else []

    found = wait_until(events, "an event of every stage")
    flow = {"prefect.resource.role": "flow", "prefect.resource.name": "hero-run"}
    assert all(any(flow.items() <= related.items() for related in event["related"]) for event in found)


@pytest.fixture
def events(monkeypatch):
    """What is reported, and what is emitted of it, with a clock that is set by hand."""
    emitted: list[float] = []
    clock = [1000.0]
    monkeypatch.setattr(progress_events, "emit_event", lambda name, resource, payload: emitted.append(payload["done"]))
    monkeypatch.setattr(progress_events, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    of_stage = ProgressEvents("inference")

    def report(at_seconds: float, done: float, phase: str = "inference") -> list[float]:
        clock[0] = 1000.0 + at_seconds
        of_stage.report(Progress(phase, done, 100.0, "prompts", {}))
        return emitted

    return report


def test_not_more_often_than_once_a_minute(events):
    for second in range(0, 150, 10):
        emitted = events(second, float(second))
    assert emitted == [0, 60, 120]


def test_not_while_nothing_is_done(events):
    events(0, 5)
    assert events(600, 5) == [5]


def test_a_new_phase_is_progress(events):
    events(0, 0, "loading")
    assert events(600, 0, "inference") == [0, 0]
