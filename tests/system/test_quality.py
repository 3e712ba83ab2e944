"""Answers that are cut, loop, or are all thinking: kept, counted, and too many of them stop the run."""

import random

import pytest

from tasks.errors import BadProduct
from tasks.recipe import Inference, Server
from tasks.system.answering import answer_prompts, finish_set
from tasks.system.generation import Tally
from tasks.system.journal import Journal, read_answers
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt, PromptSets
from tasks.system.quality import LEAST_ANSWERS, Quality, is_looping
from tasks.system.restarts import Restarts
from tests.system.stub_server import Stub, answer, stub_server

NO_RESTARTS = Restarts(most=0, reopen=lambda endpoint: endpoint, on_death=lambda _: None)
TEXT = random.Random(0).choices(range(5000), k=400)


@pytest.mark.fault("answers-cut-or-looping")
@pytest.mark.parametrize(
    ("token_ids", "loops"),
    [
        (TEXT, False),
        (TEXT[:50], False),
        (TEXT + list(range(12)) * 30, True),
        ([7] * 100, True),
        (TEXT[:300] + [1, 2, 3] * 5, False),
    ],
    ids=["text", "short text", "a sentence again and again", "one token", "a short refrain"],
)
def test_a_loop_is_told_from_text(token_ids, loops):
    assert is_looping(token_ids) is loops


def quality(truncated: int, looping: int = 0, answers: int = LEAST_ANSWERS) -> Quality:
    return Quality(answers=answers, truncated=truncated, looping=looping, last_looping="abc")


@pytest.mark.fault("answers-cut-or-looping")
def test_too_many_cut_answers_stop_the_run_with_share_limit_and_what_to_do():
    with pytest.raises(
        BadProduct, match=r"60% of the first 200 answers were cut at 8192 tokens \(limit: 50%.*max_new_tok"
    ):
        quality(truncated=120).require(Inference())


@pytest.mark.fault("answers-cut-or-looping")
def test_too_many_looping_answers_stop_the_run_and_one_is_named():
    with pytest.raises(
        BadProduct, match=r"20% of the first 200 answers repeat themselves \(limit: 10%\), such as sample abc"
    ):
        quality(truncated=0, looping=40).require(Inference())


@pytest.mark.parametrize("few", [quality(100), quality(100, answers=100), quality(0, looping=20)])
def test_shares_within_the_limits_or_of_few_answers_do_not_stop_it(few):
    few.require(Inference())


def ask(stub: Stub, count: int, path, spec: Inference) -> Tally:
    STOP.clear()
    training = [Prompt(f"id{i}", "test", [{"role": "user", "content": f"prompt {i}"}]) for i in range(count)]
    sets = PromptSets(training, [], [], rows_read=count, skipped={})
    with stub_server(stub) as served, Journal(path, 0) as journal:
        tally = answer_prompts(sets, served.endpoint, spec, Server(), journal, NO_RESTARTS, lambda _: None)
    finish_set(sets, path, path.parent / "set", tally)
    return tally


def thinking() -> dict:
    reply = answer("")
    reply["choices"][0] |= {"finish_reason": "length"}
    reply["choices"][0]["message"] |= {"content": None, "reasoning": "well, first"}
    return reply


@pytest.mark.fault("thinking-used-the-budget")
def test_an_answer_that_is_all_thinking_is_kept_and_marked(tmp_path):
    ask(Stub(lambda text, before: (200, thinking())), 2, tmp_path / "j.jsonl", Inference())
    kept = next(read_answers(tmp_path / "j.jsonl", ["id0"]))
    assert (kept.text, kept.reasoning, kept.finish_reason, kept.response_token_ids) == (
        "",
        "well, first",
        "length",
        [5, 6, 7],
    )


@pytest.mark.fault("thinking-used-the-budget")
def test_the_share_of_answers_that_are_all_thinking_is_reported(tmp_path):
    decide = lambda text, before: (200, thinking() if text == "prompt 0" else answer())  # noqa: E731
    ask(Stub(decide), 4, tmp_path / "j.jsonl", Inference())
    card = (tmp_path / "set" / "README.md").read_text()
    assert "cut at the limit: 25.0%; repeating themselves: 0.0%; thinking only: 25.0%" in card


@pytest.mark.fault("answers-cut-or-looping")
def test_the_run_stops_early_and_its_answers_are_kept(tmp_path):
    stub = Stub(lambda text, before: (200, thinking()))
    with pytest.raises(BadProduct, match=r"100% of the first 200 answers were cut"):
        ask(stub, 1000, tmp_path / "j.jsonl", Inference(in_flight=8))
    assert LEAST_ANSWERS <= len((tmp_path / "j.jsonl").read_text().splitlines()) < 300


@pytest.mark.fault("answers-cut-or-looping")
def test_a_run_that_starts_again_knows_the_answers_before(tmp_path):
    spec = Inference(in_flight=8)
    with pytest.raises(BadProduct):
        ask(Stub(lambda text, before: (200, thinking())), 1000, tmp_path / "j.jsonl", spec)
    stub = Stub(lambda text, before: (200, thinking()))
    with pytest.raises(BadProduct):
        ask(stub, 1000, tmp_path / "j.jsonl", spec)
    assert stub.asked.total() < 20
