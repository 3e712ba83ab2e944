"""Products are what was written, or they are made anew."""

import dataclasses
import os

import pytest

from tasks.errors import BadProduct
from tasks.system.answering import AnswerFacts
from tasks.system.manifest import place, write_manifest
from tasks.system.run import UNASKED_FACT, finished, product_of, require_content
from tests.system.small_data_root import small_run


@pytest.fixture
def stage(tmp_path):
    stage = place(tmp_path, "responses", "inference", 1)
    stage.folder.mkdir(parents=True)
    (stage.folder / "responses.jsonl").write_text("one\ntwo\n")
    write_manifest(stage, ["responses.jsonl"], {})
    return stage


def flip_a_byte(path) -> None:
    """Damage that size and time do not show."""
    status = path.stat()
    path.write_bytes(path.read_bytes()[:-2] + b"?\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_product_as_it_was_written_is_let_through(stage):
    require_content(product_of(stage))


def test_a_flipped_byte_is_found_and_both_checksums_are_told(stage):
    flip_a_byte(stage.folder / "responses.jsonl")
    with pytest.raises(
        BadProduct, match=r"responses.jsonl is damaged: sha256 [0-9a-f]{64} was written, [0-9a-f]{64} was"
    ):
        require_content(product_of(stage))


def test_a_damaged_file_counts_as_missing_afterwards(stage):
    flip_a_byte(stage.folder / "responses.jsonl")
    with pytest.raises(BadProduct):
        require_content(product_of(stage))
    assert stage.manifest() is None


@pytest.mark.parametrize(("unasked", "is_kept"), [(18, True), (0, False)])
def test_a_refreshed_set_keeps_its_journal_if_a_deadline_cut_it_short(stage, tmp_path, unasked, is_kept):
    """Then what is wanted are the answers that it lacks; else all are wanted anew."""
    journal = tmp_path / "answers" / "journal.jsonl"
    journal.parent.mkdir()
    journal.write_text("answers")
    stage = dataclasses.replace(stage, resumes_from=(journal.parent,))
    write_manifest(stage, ["responses.jsonl"], {UNASKED_FACT: unasked})
    run = dataclasses.replace(small_run(tmp_path), refresh=("inference",))
    assert finished(run, stage) is None
    assert (journal.exists(), stage.folder.exists()) == (is_kept, False)


def test_the_fact_of_answers_that_are_cut_short_is_one_of_theirs():
    assert UNASKED_FACT in {field.name for field in dataclasses.fields(AnswerFacts)}
