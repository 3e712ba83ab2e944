"""What is expected of the answers that are still to come, while some are in flight."""

import time

import pytest

from tasks.artifacts import describe
from tasks.system.answering import outlook
from tasks.system.engine_child import ETA_SECONDS, Progress
from tasks.system.generation import Sampling, Tally, ask_all
from tasks.system.prompts import Prompt
from tests.system.stub_server import Stub, answer, stub_server


def tally(answered: int, answer_tokens: int, made_tokens: int, seconds: float = 100.0) -> Tally:
    return Tally(answered=answered, answer_tokens=answer_tokens, made_tokens=made_tokens, seconds=seconds)


def test_tokens_in_flight_count_for_the_mean_length():
    # 10 short answers of 100 tokens are there, and 9,000 tokens of others that are in flight.
    assert outlook(tally(10, 1000, 10_000), 90, 8192)["expected_answer_tokens"] == 1000


def test_without_anything_in_flight_the_mean_is_that_of_the_answers():
    assert outlook(tally(10, 1000, 0), 90, 8192)["expected_answer_tokens"] == 100


def test_no_answer_is_expected_to_be_longer_than_allowed():
    assert outlook(tally(1, 100, 50_000), 90, 8192)["expected_answer_tokens"] == 8192


def test_the_time_to_go_is_that_of_the_tokens_to_go():
    # 90 x 1,000 tokens less the 9,000 in flight, at 10,000 tokens in 100 s.
    assert outlook(tally(10, 1000, 10_000), 90, 8192)[ETA_SECONDS] == pytest.approx(810)


def test_before_the_first_answer_nothing_is_promised():
    assert outlook(tally(0, 0, 5000), 90, 8192) == {}


def test_an_eta_of_its_own_takes_the_place_of_the_pace_so_far():
    progress = Progress("answering", 10, 100, "prompts", {"tokens_per_second": 100.0, ETA_SECONDS: 810.0})
    text = "answering: 10 of 100 prompts (10 %), 0.1 prompts/s, ETA 13 min 30 s; tokens per second 100"
    assert describe(progress, gained=10, seconds=100) == text


def test_what_the_server_counts_is_what_is_in_flight():
    made = iter(range(1000, 100_000, 500))

    def decide(text: str, before: int) -> tuple[int, dict]:
        time.sleep(0.4 if text == "slow" else 0.0)
        return 200, answer()

    stub, seen = Stub(decide=decide, generated_tokens=lambda: next(made)), []
    sampling = Sampling(
        max_new_tokens=8,
        temperature=0.0,
        top_p=1.0,
        in_flight=2,
        request_timeout_seconds=5.0,
        request_retries=0,
        token_stall_seconds=0.4,  # looked at four times in that time
    )
    prompts = [Prompt(text, "test", [{"role": "user", "content": text}]) for text in ("quick", "slow")]
    with stub_server(stub) as served:
        ask_all(prompts, served.endpoint, sampling, lambda _, tally: seen.append(tally.tokens_in_flight))
    # At the second answer the server had counted 500 tokens or more since it was first looked at; 6 are answered.
    assert seen[1] >= 494 and (seen[1] + 6) % 500 == 0
