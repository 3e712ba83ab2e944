"""What happens to requests when the server misbehaves."""

import threading
import time

import pytest

from tasks.errors import ServerGone, Stopped
from tasks.system import generation
from tasks.system.generation import Answer, Rejected, Sampling, ask_all
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt
from tasks.system.server_watch import FAILURES_IN_A_ROW
from tests.system.stub_server import ERROR, Stub, answer, stub_server


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(generation, "FIRST_BACKOFF_SECONDS", 0.01)
    STOP.clear()


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"id{i}", "test", [{"role": "user", "content": f"prompt {i}"}]) for i in range(count)]


def sampling(**changes) -> Sampling:
    values = {
        "max_new_tokens": 8,
        "temperature": 0.0,
        "top_p": 1.0,
        "in_flight": 4,
        "request_timeout_seconds": 5.0,
        "request_retries": 2,
        "token_stall_seconds": 60.0,
    }
    return Sampling(**{**values, **changes})


def ask(stub, count=8, **changes):
    outcomes = []
    with stub_server(stub) as served:
        tally = ask_all(
            prompts(count), served.endpoint, sampling(**changes), lambda outcome, _: outcomes.append(outcome)
        )
    return outcomes, tally


def test_every_prompt_is_asked_once():
    stub = Stub()
    _, tally = ask(stub)
    assert (tally.answered, set(stub.asked.values())) == (8, {1})


def test_the_exact_ids_are_kept():
    outcomes, _ = ask(Stub(), count=1)
    assert (outcomes[0].prompt_token_ids, outcomes[0].response_token_ids) == ([1, 2], [5, 6, 7])


@pytest.mark.fault("client-exceptions")
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_fault_is_asked_again_and_counted(status):
    stub = Stub(lambda text, before: (200, answer()) if before else (status, ERROR))
    _, tally = ask(stub)
    assert (tally.answered, tally.retries.total(), set(stub.asked.values())) == (8, 8, {2})


@pytest.mark.fault("client-exceptions")
def test_a_cut_connection_is_asked_again():
    _, tally = ask(Stub(lambda text, before: (200, answer()) if before else None))
    assert (tally.answered, dict(tally.retries)) == (8, {"APIConnectionError": 8})


def test_the_pause_that_a_busy_server_asks_for_is_kept():
    stub = Stub(lambda text, before: (200, answer()) if before else (429, ERROR), headers={"retry-after": "1"})
    started = time.monotonic()
    _, tally = ask(stub, count=1)
    assert tally.answered == 1 and time.monotonic() - started >= 1


@pytest.mark.fault("prompt-over-window")
@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refused_prompt_is_rejected_with_the_reason_and_never_asked_again(status):
    stub = Stub(lambda text, before: (status, ERROR) if text == "prompt 3" else (200, answer()))
    outcomes, tally = ask(stub)
    (rejected,) = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert rejected.prompt.sample_id == "id3" and f"HTTP {status}" in rejected.reason
    assert (tally.answered, stub.asked["prompt 3"]) == (7, 1)


def test_a_prompt_that_a_healthy_server_cannot_answer_does_not_stop_the_others():
    stub = Stub(lambda text, before: (500, ERROR) if text == "prompt 3" else (200, answer()))
    outcomes, tally = ask(stub)
    (rejected,) = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert rejected.reason.startswith("no answer in 3 tries, the last with InternalServerError")
    assert (tally.answered, stub.asked["prompt 3"]) == (7, 3)


@pytest.mark.fault("engine-dies-mid-run")
def test_failures_in_a_row_from_a_server_that_is_not_healthy_end_the_asking():
    stub = Stub(lambda text, before: (500, ERROR), healthy=False)
    with pytest.raises(ServerGone, match=r"\d+ requests in a row failed, the last with InternalServerError"):
        ask(stub, count=500)
    assert stub.asked.total() <= 3 * FAILURES_IN_A_ROW


@pytest.mark.fault("engine-dies-mid-run")
def test_a_port_that_refuses_ends_the_asking():
    with stub_server(Stub()) as stub:
        pass
    with pytest.raises(ServerGone, match="APIConnectionError: Connection error"):
        ask_all(prompts(500), stub.endpoint, sampling(), lambda *_: None)


@pytest.mark.fault("server-gone-for-good")
def test_answers_before_the_end_are_handed_on():
    outcomes = []
    stub = Stub(lambda text, before: (200, answer()) if text == "prompt 0" else (500, ERROR), healthy=False)
    with stub_server(stub) as served, pytest.raises(ServerGone):
        ask_all(prompts(8), served.endpoint, sampling(), lambda outcome, _: outcomes.append(outcome))
    assert [o.prompt.sample_id for o in outcomes if isinstance(o, Answer)] == ["id0"]


def stuck(text: str, before: int):
    """Never answers while the run lasts."""
    STOP.wait(30)
    return (200, answer())


@pytest.mark.fault("healthy-but-stuck")
@pytest.mark.parametrize("generated", [None, lambda: 17], ids=["no counter", "a counter that stands"])
def test_a_healthy_server_that_makes_no_token_is_given_up(generated):
    stub = Stub(stuck, generated_tokens=generated)
    with pytest.raises(ServerGone, match=r"made no token for 1 s \(limit: 1 s\) although requests wait; .* answers\."):
        ask(stub, token_stall_seconds=1.0)
    STOP.set()


@pytest.mark.fault("healthy-but-stuck")
def test_a_server_that_makes_tokens_is_waited_for():
    made = iter(range(10**6))
    slow = threading.Event()

    def decide(text, before):
        slow.wait(1.5)
        return (200, answer())

    _, tally = ask(Stub(decide, generated_tokens=lambda: next(made)), count=1, token_stall_seconds=0.4)
    assert tally.answered == 1


@pytest.mark.fault("slow-answer")
def test_an_answer_beyond_our_limit_is_asked_again_by_us_only():
    def decide(text, before):
        time.sleep(0 if before else 1.0)
        return (200, answer())

    stub = Stub(decide)
    outcomes, tally = ask(stub, count=2, request_timeout_seconds=0.5)
    assert (dict(tally.retries), stub.asked.total(), len(outcomes)) == ({"APITimeoutError": 2}, 4, 2)


@pytest.mark.fault("fan-out")
def test_two_hundred_requests_are_really_in_flight():
    all_there = threading.Barrier(200)

    def decide(text, before):
        all_there.wait(30)  # nobody is answered before all have arrived
        return (200, answer())

    _, tally = ask(Stub(decide), count=200, in_flight=200, request_timeout_seconds=40)
    assert (tally.answered, tally.retries.total()) == (200, 0)


def test_a_stop_of_the_run_ends_the_asking():
    def decide(text, before):
        STOP.set()
        return (200, answer())

    with pytest.raises(Stopped):
        ask(Stub(decide), count=5000)
    STOP.clear()


@pytest.mark.fault("reasoning-field")
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_both_its_names(name):
    reply = answer()
    reply["choices"][0]["message"][name] = "hmm"
    outcomes, _ = ask(Stub(lambda text, before: (200, reply)), count=1)
    assert outcomes[0].reasoning == "hmm"
