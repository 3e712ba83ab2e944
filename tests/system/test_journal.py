"""The answer journal keeps every whole line, whatever moment the process died."""

import pytest

from tasks.system.journal import Journal, read_answers
from tasks.system.responses import Response


def response(sample_id: str) -> Response:
    return Response(
        sample_id=sample_id,
        split="training",
        source="test",
        prompt_token_ids=[1, 2],
        response_token_ids=[3, 4, 5],
        finish_reason="stop",
        text="a line\nbreak, ünïcode",
    )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "answers" / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(response("a"))
        journal.append(response("b"))
    return path


def test_what_was_appended_is_read_back(path):
    assert list(read_answers(path, ["a"])) == [response("a")]


def test_answers_come_in_the_order_that_is_asked_for(path):
    assert [answer.sample_id for answer in read_answers(path, ["b", "x", "a"])] == ["b", "a"]


@pytest.mark.fault("killed-in-inference")
def test_a_sample_is_kept_once(path):
    with Journal(path) as journal:
        journal.append(response("a"))
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.fault("killed-in-inference")
@pytest.mark.parametrize("cut_bytes", [1, 5, 40])
def test_a_torn_last_line_is_dropped_and_the_others_stay(path, cut_bytes):
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    with Journal(path) as journal:
        assert journal.sample_ids == {"a"}
        journal.append(response("c"))
    assert [answer.sample_id for answer in read_answers(path, ["a", "b", "c"])] == ["a", "c"]


@pytest.mark.fault("killed-in-inference")
def test_a_journal_that_is_one_torn_line_is_empty(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"sample_id": "a", "spl')
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert journal.sample_ids == set()
