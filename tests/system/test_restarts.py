"""A server that dies comes back, a bounded number of times, and nothing is lost or asked twice."""

from pathlib import Path

import pytest

from tasks.errors import GaveUp, ServerGone
from tasks.recipe import Inference, Server
from tasks.system import generation
from tasks.system.answering import answer_prompts
from tasks.system.journal import Journal
from tasks.system.processes import STOP
from tasks.system.prompts import Prompt, PromptSets
from tasks.system.restarts import Restarts, keep_asking
from tasks.system.vllm_server import Endpoint
from tests.system.stub_server import ERROR, Stub, answer, stub_server

SERVER = Endpoint("http://127.0.0.1:1", "target", Path("server.log"), is_ours=False)


class Dying:
    """A server that dies after so many answers, again and again."""

    def __init__(self, answers_before_each_death: list[int]) -> None:
        self.lives = answers_before_each_death
        self.answered = 0
        self.starts = 0
        self.deaths: list[str] = []

    def ask(self, _endpoint: Endpoint) -> None:
        if not self.lives:
            return
        self.answered += self.lives.pop(0)
        raise ServerGone("gone")

    def reopen(self, endpoint: Endpoint) -> Endpoint:
        self.starts += 1
        return endpoint

    def run(self, most: int = 3) -> None:
        restarts = Restarts(most=most, reopen=self.reopen, on_death=lambda error: self.deaths.append(str(error)))
        keep_asking(SERVER, restarts, self.ask, lambda: self.answered)


@pytest.mark.fault("engine-dies-mid-run")
def test_a_server_that_dies_is_started_again_and_asked_on():
    server = Dying([5, 7])
    server.run()
    assert (server.starts, server.deaths) == (2, ["gone", "gone"])


@pytest.mark.fault("server-gone-for-good")
def test_the_restarts_are_bounded_and_the_end_says_how_many_are_done():
    server = Dying([5, 5, 5, 5])
    with pytest.raises(
        GaveUp, match=r"died 3 times, and 2 restarts are allowed .* 15 prompts were answered in this run"
    ):
        server.run(most=2)
    assert server.starts == 2


@pytest.mark.fault("same-failure-twice")
def test_two_deaths_in_a_row_without_an_answer_are_enough():
    server = Dying([5, 0, 0, 5])
    with pytest.raises(GaveUp, match="2 times in a row without an answer in between"):
        server.run(most=9)


def test_a_server_of_ours_that_is_not_running_is_started_before_anything_is_asked():
    server = Dying([])
    restarts = Restarts(most=0, reopen=server.reopen, on_death=lambda _: None)
    keep_asking(Endpoint("http://127.0.0.1:1", "target", Path()), restarts, server.ask, lambda: 0)
    assert (server.starts, server.deaths) == (1, [])


@pytest.mark.fault("engine-dies-mid-run")
def test_no_row_is_lost_or_doubled_by_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "FIRST_BACKOFF_SECONDS", 0.01)
    STOP.clear()
    training = [Prompt(f"id{i}", "test", [{"role": "user", "content": f"prompt {i}"}]) for i in range(60)]
    sets = PromptSets(training, [], [], rows_read=60, skipped={})
    spec = Inference(max_new_tokens=8, in_flight=8, request_timeout_seconds=5, request_retries=2)
    stub = Stub()
    stub.decide = lambda text, before: (200, answer()) if stub.asked.total() <= 20 or stub.healthy else (500, ERROR)
    stub.healthy = False

    def reopen(endpoint: Endpoint) -> Endpoint:
        stub.healthy = True
        return endpoint

    with stub_server(stub) as served, Journal(tmp_path / "journal.jsonl", 0) as journal:
        restarts = Restarts(most=3, reopen=reopen, on_death=lambda _: None)
        tally = answer_prompts(sets, served.endpoint, spec, Server(), journal, restarts, lambda _: None)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 60 and len(journal.sample_ids) == 60 and tally.answered == 60
