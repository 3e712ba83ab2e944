"""What happens to requests when the server misbehaves."""

import pytest

from tasks.errors import ServerGone, Stopped
from tasks.system import generation
from tasks.system.generation import Answer, Rejected, Sampling, ask_all
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt
from tests.system.stub_server import answer, stub_server

ERROR = {"error": {"message": "no", "type": "x", "code": 0}}


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
    }
    return Sampling(**{**values, **changes})


def ask(decide, count=8, **changes):
    outcomes = []
    with stub_server(decide) as (endpoint, asked):
        tally = ask_all(prompts(count), endpoint, sampling(**changes), lambda outcome, _: outcomes.append(outcome))
    return outcomes, tally, asked


def test_every_prompt_is_asked_once():
    _, tally, asked = ask(lambda text, before: (200, answer()))
    assert (tally.answered, set(asked.values())) == (8, {1})


def test_the_exact_ids_are_kept():
    outcomes, _, _ = ask(lambda text, before: (200, answer()), count=1)
    assert (outcomes[0].prompt_token_ids, outcomes[0].response_token_ids) == ([1, 2], [5, 6, 7])


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_fault_is_asked_again_and_counted(status):
    _, tally, asked = ask(lambda text, before: (200, answer()) if before else (status, ERROR))
    assert (tally.answered, tally.retries.total(), set(asked.values())) == (8, 8, {2})


def test_a_cut_connection_is_asked_again():
    _, tally, _ = ask(lambda text, before: (200, answer()) if before else None)
    assert (tally.answered, dict(tally.retries)) == (8, {"APIConnectionError": 8})


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refused_prompt_is_rejected_with_the_reason_and_never_asked_again(status):
    refuse = lambda text, before: (status, ERROR) if text == "prompt 3" else (200, answer())  # noqa: E731
    outcomes, tally, asked = ask(refuse)
    (rejected,) = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert rejected.prompt.sample_id == "id3" and f"HTTP {status}" in rejected.reason
    assert (tally.answered, asked["prompt 3"]) == (7, 1)


def test_a_server_that_is_gone_ends_the_asking_after_the_retries():
    with pytest.raises(ServerGone, match=r"got no answer from http://127.0.0.1:\d+ in 3 tries, the last with Internal"):
        ask(lambda text, before: (500, ERROR))


def test_a_server_that_goes_stops_the_other_requests():
    with stub_server(lambda text, before: (500, ERROR)) as (endpoint, asked):
        with pytest.raises(ServerGone):
            ask_all(prompts(500), endpoint, sampling(), lambda *_: None)
        assert len(asked) < 20


def test_answers_before_the_end_are_handed_on():
    outcomes = []
    decide = lambda text, before: (200, answer()) if text == "prompt 0" else (500, ERROR)  # noqa: E731
    with stub_server(decide) as (endpoint, _), pytest.raises(ServerGone):
        ask_all(prompts(8), endpoint, sampling(), lambda outcome, _: outcomes.append(outcome))
    assert [o.prompt.sample_id for o in outcomes if isinstance(o, Answer)] == ["id0"]


def test_a_stop_of_the_run_ends_the_asking():
    def decide(text, before):
        STOP.set()
        return (200, answer())

    with pytest.raises(Stopped):
        ask(decide, count=5000)
    STOP.clear()


def test_reasoning_under_its_older_name_is_read():
    reply = answer()
    reply["choices"][0]["message"] |= {"reasoning_content": "hmm"}
    outcomes, _, _ = ask(lambda text, before: (200, reply), count=1)
    assert outcomes[0].reasoning == "hmm"
