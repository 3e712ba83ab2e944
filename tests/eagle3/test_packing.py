"""Packing: a pure function of seed, epoch and samples."""

import pytest
import torch
from small_states import write_states

from tasks.eagle3.packing import pack_documents, plan_steps, read_pack, survey_samples
from tasks.errors import BadInput
from tasks.hidden_states.reader import StateReader


def surveyed(reader, pack_tokens=30):
    training = [entry for entry in reader.samples if entry.split == "training"]
    return survey_samples(reader, training, pack_tokens, 3, 40, lambda *_: None)


@pytest.fixture
def reader(states_folder):
    return StateReader(states_folder)


def ids(steps):
    return [[[document.entry.sample_id for document in pack] for pack in step] for step in steps]


def test_packs_hold_every_sample_once_an_epoch_and_are_not_overfull(reader):
    documents = surveyed(reader).documents
    steps = plan_steps(documents, 30, 2, 1, seed=0)
    packs = [pack for step in steps for pack in step]
    assert sorted(d.entry.sample_id for pack in packs for d in pack) == [f"s{i}" for i in range(6)]
    assert all(sum(d.length_tokens for d in pack) <= 30 for pack in packs)
    assert all(len(step) <= 2 for step in steps)


def test_the_order_depends_on_seed_and_epoch_alone(reader):
    documents = surveyed(reader).documents
    again = plan_steps(documents[::-1], 30, 1, 2, seed=5)
    assert ids(plan_steps(documents, 30, 1, 2, seed=5)) == ids(again)
    assert ids(plan_steps(documents, 30, 1, 2, seed=6)) != ids(again)
    flat = [name for step in ids(again) for pack in step for name in pack]
    assert flat[:6] != flat[6:]


def test_a_sample_longer_than_a_pack_is_cut_and_counted(reader):
    survey = surveyed(reader, pack_tokens=12)
    assert survey.cut_samples == 2
    assert max(document.length_tokens for document in survey.documents) == 12


@pytest.mark.fault("nothing-to-learn")
def test_a_sample_without_an_answer_is_left_out_and_counted(tmp_path):
    survey = surveyed(StateReader(write_states(tmp_path / "s", lengths=(3, 10, 11, 9, 9, 9))))
    assert survey.skipped_samples == 1
    assert [document.entry.sample_id for document in survey.documents] == ["s1", "s2", "s3"]


@pytest.mark.fault("nothing-to-learn")
def test_an_answer_beyond_the_cut_is_left_out_and_counted(tmp_path):
    """Prompts of 12 tokens: only in samples that are cut behind them is there anything to learn."""
    reader = StateReader(write_states(tmp_path / "s", lengths=(13, 12, 30, 30, 30, 30, 30), prompt_tokens=12))
    assert surveyed(reader, pack_tokens=20).skipped_samples == 1
    with pytest.raises(BadInput, match="5 of 5 samples have no answer token within their first 12 tokens"):
        surveyed(reader, pack_tokens=12)


@pytest.mark.fault("nothing-to-learn")
def test_mostly_useless_samples_stop_the_run(tmp_path):
    with pytest.raises(BadInput, match="2 of 3 samples have no answer token"):
        surveyed(StateReader(write_states(tmp_path / "s", lengths=(3, 3, 11, 9, 9))))


def test_answers_alone_are_counted_for_the_vocabulary(reader):
    survey = surveyed(reader)
    assert int(survey.answer_counts_V.sum()) == sum(n - 4 for n in (12, 9, 15, 11, 14, 8))


def test_a_pack_lays_documents_end_to_end(reader):
    documents = surveyed(reader).documents[:2]
    pack = read_pack(reader, documents)
    assert pack.start_T.tolist() == [0] * 12 + [12] * 9
    assert pack.answer_T.tolist() == [False] * 4 + [True] * 8 + [False] * 4 + [True] * 5
    assert torch.equal(pack.aux_TAD[12:], reader.read(documents[1].entry).aux_TAD)


def test_a_document_that_does_not_fit_opens_the_next_pack(reader):
    documents = surveyed(reader).documents
    assert [len(pack) for pack in pack_documents(documents, 21)] == [2, 1, 1, 1, 1]
