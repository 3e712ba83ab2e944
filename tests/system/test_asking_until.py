"""Asking until a deadline: nothing is sent after it draws near, what is in flight has some time, nothing is lost."""

import json
import math
import time
from pathlib import Path

import pytest

from tasks.errors import BadProduct, DeadlineReached
from tasks.recipe import Inference, Server
from tasks.system.answering import DATA_CARD_NAME, answer_prompts, finish_set
from tasks.system.deadline import Until
from tasks.system.generation import Tally
from tasks.system.journal import Journal
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt, PromptSets
from tasks.system.restarts import Restarts
from tasks.system.vllm_server import Endpoint
from tests.system.stub_server import Stub, answer, stub_server

SPEC = Inference(max_new_tokens=8, in_flight=2, request_timeout_seconds=30)
VALIDATION = 2


@pytest.fixture(autouse=True)
def no_run_is_stopping():
    STOP.clear()


def prompts(count: int) -> PromptSets:
    made = [Prompt(f"id{i}", "test", [{"role": "user", "content": f"prompt {i}"}]) for i in range(count)]
    return PromptSets(made[VALIDATION:], made[:VALIDATION], [], rows_read=count, skipped={})


def no_restart(gone: Endpoint) -> Endpoint:
    raise DeadlineReached("there is no time to start the server again.")


def ask(sets: PromptSets, journal_path: Path, stub: Stub, until: Until) -> Tally:
    restarts = Restarts(most=3, reopen=no_restart, on_death=lambda _: None)
    with stub_server(stub) as served, Journal(journal_path, 0) as journal:
        return answer_prompts(sets, served.endpoint, SPEC, Server(), journal, restarts, lambda _: None, until)


def journal_ids(path: Path) -> list[str]:
    return [json.loads(line)["sample_id"] for line in path.read_text().splitlines()]


def answers_after(posix_seconds: float) -> Stub:
    """A server that gives no answer before this time."""

    def decide(text: str, before: int):
        time.sleep(max(0.0, posix_seconds - time.time()))
        return 200, answer()

    return Stub(decide)


def test_what_is_in_flight_is_awaited_and_nothing_more_is_sent(tmp_path):
    send = time.time() + 0.5
    stub = answers_after(send + 0.2)
    tally = ask(prompts(10), tmp_path / "j.jsonl", stub, Until(send, math.inf))
    assert (stub.asked.total(), tally.answered, tally.unasked) == (2, 2, 8)
    assert sorted(journal_ids(tmp_path / "j.jsonl")) == ["id0", "id1"]


def test_what_is_in_flight_too_long_is_dropped_and_the_answers_before_are_kept(tmp_path):
    until = Until(time.time() + 0.5, time.time() + 0.8)
    stub = answers_after(time.time() + 6)
    quick = stub.decide
    stub.decide = lambda text, before: (200, answer()) if text in ("prompt 0", "prompt 3") else quick(text, before)
    tally = ask(prompts(10), tmp_path / "j.jsonl", stub, until)
    assert time.time() < until.wait_seconds + 4
    assert journal_ids(tmp_path / "j.jsonl") == ["id0"] and (tally.answered, tally.unasked) == (1, 9)


def test_the_next_start_asks_the_others_and_each_once(tmp_path):
    sets, path = prompts(10), tmp_path / "j.jsonl"
    send = time.time() + 0.3
    ask(sets, path, answers_after(send + 0.2), Until(send, math.inf))
    second = Stub()
    assert ask(sets, path, second, Until()).unasked == 0
    assert sorted(journal_ids(path)) == sorted(f"id{i}" for i in range(10)) and second.asked.total() == 8


def test_past_the_deadline_nothing_is_asked(tmp_path):
    stub = Stub()
    tally = ask(prompts(10), tmp_path / "j.jsonl", stub, Until(time.time() - 1, math.inf))
    assert (stub.asked.total(), tally.unasked) == (0, 10)


def test_a_server_that_is_gone_near_the_deadline_is_not_started_again(tmp_path):
    gone = Endpoint("http://127.0.0.1:1", "target", tmp_path / "server.log")
    restarts = Restarts(most=3, reopen=no_restart, on_death=lambda _: None)
    with Journal(tmp_path / "j.jsonl", 0) as journal:
        tally = answer_prompts(prompts(10), gone, SPEC, Server(), journal, restarts, lambda _: None)
    assert (tally.answered, tally.unasked) == (0, 10)


def test_a_prompt_that_the_server_refused_is_dealt_with(tmp_path):
    refusal = {"error": {"message": "no", "type": "x", "code": 400}}
    stub = Stub(lambda text, before: (400, refusal) if text == "prompt 1" else (200, answer()))
    assert ask(prompts(10), tmp_path / "j.jsonl", stub, Until()).unasked == 0


def answered_until_now(tmp_path: Path, count: int, of: int) -> tuple[PromptSets, Tally]:
    """Answers to the first ``count`` prompts of a set, the held-out ones first, and no time for more."""
    sets = prompts(of)
    ask(prompts(count), tmp_path / "j.jsonl", Stub(), Until())
    return sets, ask(sets, tmp_path / "j.jsonl", Stub(), Until(0.0, math.inf))


def test_a_set_can_be_finished_with_what_was_answered_and_says_so(tmp_path):
    sets, tally = answered_until_now(tmp_path, 12, of=30)
    facts = finish_set(sets, tmp_path / "j.jsonl", tmp_path / "set", tally)
    assert (facts.training_samples, facts.validation_samples, facts.unasked_prompts) == (10, 2, 18)
    card = (tmp_path / "set" / DATA_CARD_NAME).read_text()
    assert "- samples: 10 for training, 2 for validation" in card
    assert "- prompts that a deadline left no time for: 18" in card


@pytest.mark.parametrize(("count", "training", "validation"), [(1, 0, 1), (9, 7, 2)])
def test_a_set_with_too_few_answers_is_refused_and_says_what_to_do(tmp_path, count, training, validation):
    sets = prompts(30)
    with stub_server(Stub()) as served, Journal(tmp_path / "j.jsonl", 0) as journal:
        few = PromptSets(sets.training[: max(0, count - 2)], sets.validation[:count], [], rows_read=30, skipped={})
        restarts = Restarts(most=0, reopen=no_restart, on_death=lambda _: None)
        answer_prompts(few, served.endpoint, SPEC, Server(), journal, restarts, lambda _: None)
    tally = ask(sets, tmp_path / "j.jsonl", Stub(), Until(0.0, math.inf))
    message = (
        f"the deadline left {30 - count} of 30 prompts unasked, and the answers are too few to go on with: {training} "
        f"for training and {validation} for validation, at least 8 and 1 are needed. Start again with more time: "
    )
    with pytest.raises(BadProduct, match=message):
        finish_set(sets, tmp_path / "j.jsonl", tmp_path / "set", tally)


def test_a_complete_set_is_not_held_to_that(tmp_path):
    sets = prompts(3)
    tally = ask(sets, tmp_path / "j.jsonl", Stub(), Until())
    assert finish_set(sets, tmp_path / "j.jsonl", tmp_path / "set", tally).unasked_prompts == 0
