"""The answer journal keeps every whole line, whatever moment the process died."""

import itertools
import shutil
from pathlib import Path

import pytest

from tasks.errors import NotEnoughDisk
from tasks.system.journal import Journal, answered_ids, read_answers
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


BLOCK_BYTES = 4096


def fill(path: Path, reserve: int) -> None:
    """Append without end."""
    with Journal(path, reserve) as journal:
        for i in itertools.count():
            journal.append(response(f"{i:04d}" + "x" * 20_000))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "answers" / "journal.jsonl"
    with Journal(path, 0) as journal:
        journal.append(response("a"))
        journal.append(response("b"))
    return path


def test_what_was_appended_is_read_back(path):
    assert list(read_answers(path, ["a"])) == [response("a")]


def test_answers_come_in_the_order_that_is_asked_for(path):
    assert [answer.sample_id for answer in read_answers(path, ["b", "x", "a"])] == ["b", "a"]


@pytest.mark.fault("killed-in-inference")
def test_a_sample_is_kept_once(path):
    with Journal(path, 0) as journal:
        journal.append(response("a"))
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.fault("killed-in-inference")
@pytest.mark.parametrize("cut_bytes", [1, 5, 40])
def test_a_torn_last_line_is_dropped_and_the_others_stay(path, cut_bytes):
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    with Journal(path, 0) as journal:
        assert journal.sample_ids == {"a"}
        journal.append(response("c"))
    assert [answer.sample_id for answer in read_answers(path, ["a", "b", "c"])] == ["a", "c"]


@pytest.mark.fault("killed-in-inference")
def test_a_journal_that_is_one_torn_line_is_empty(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"sample_id": "a", "spl')
    with Journal(tmp_path / "journal.jsonl", 0) as journal:
        assert journal.sample_ids == set()


@pytest.mark.fault("full-disk-in-every-stage")
def test_the_reserve_is_left_free_and_what_is_written_is_whole(small_volume):
    path = small_volume / "journal.jsonl"
    with pytest.raises(NotEnoughDisk, match=r"the next answer in .*jsonl needs .* kept in reserve, but .* free"):
        fill(path, reserve=500_000)
    assert shutil.disk_usage(small_volume).free >= 500_000 - BLOCK_BYTES
    assert len(answered_ids(path)) == len(path.read_text().splitlines()) > 10


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_volume_that_fills_up_in_mid_line_leaves_whole_lines_and_goes_on_when_there_is_room(small_volume):
    path = small_volume / "journal.jsonl"
    (small_volume / "other").write_bytes(b"x" * (shutil.disk_usage(small_volume).free - 200_000))
    with pytest.raises(NotEnoughDisk, match="journal.jsonl"):
        fill(path, reserve=0)
    assert path.read_text().endswith("\n")
    before = answered_ids(path)
    (small_volume / "other").unlink()
    with Journal(path, 0) as journal:
        journal.append(response("one-more"))
    assert answered_ids(path) == before | {"one-more"}
