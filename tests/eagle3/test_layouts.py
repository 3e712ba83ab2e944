"""The trainer does not care in what layout states are stored: it learns from each, and refuses what does not fit."""

from dataclasses import replace

import pytest
import torch
from small_states import DRAFT_IDS, TOP_K, VOCAB, target_head, write_states
from small_trainings import best, curve, run, with_training

from tasks.eagle3.packing import pack_documents, read_pack, survey_samples
from tasks.eagle3.soft_cross_entropy import soft_cross_entropy
from tasks.eagle3.validation import choices
from tasks.errors import BadInput
from tasks.hidden_states.draft_vocab import DraftVocab
from tasks.hidden_states.layout import LAYOUTS
from tasks.hidden_states.reader import StateReader


def pack_of(folder):
    reader = StateReader(folder)
    survey = survey_samples(reader, reader.samples, 200, 3, VOCAB, lambda done, total: None)
    return read_pack(reader, pack_documents(survey.documents, 200)[0])


@pytest.fixture
def packs(tmp_path):
    return {layout: pack_of(write_states(tmp_path / layout, layout=layout)) for layout in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_training_learns_from_every_layout(spec, tmp_path, layout):
    states = replace(spec, states_folder=write_states(tmp_path / "other", layout=layout))
    run(states)
    losses = [float(row["loss"]) for row in curve(states) if row["loss"]]
    assert losses[-1] < losses[0]


def test_the_first_loss_is_nearly_the_same_from_every_layout(spec, tmp_path):
    """Untrained, and with all draft tokens stored, so that only the rounding differs."""
    losses = []
    for layout in LAYOUTS:
        folder = write_states(tmp_path / layout, layout=layout, draft_ids=list(range(TOP_K)))
        drafter = replace(spec.drafter, draft_vocab_tokens=TOP_K)
        once = replace(spec, states_folder=folder, out_folder=tmp_path / f"{layout}-out", drafter=drafter)
        if layout != "fp8+topk":  # the base's map would come from the answers
            once = replace(once, base_folder=tmp_path / "fp8+topk-out" / "base")
        losses.append((layout, once))
    order = sorted(losses, key=lambda pair: pair[0] != "fp8+topk")
    first = {}
    for layout, once in order:
        run(with_training(once, pack_tokens=200, epochs=1))
        first[layout] = float(curve(once)[1]["loss"])
    assert first["fp8"] == pytest.approx(first["bf16"], rel=0.01)
    assert first["fp8+topk"] == pytest.approx(first["bf16"], rel=0.01)


def test_the_targets_choice_is_the_same_stored_or_computed(packs):
    computed, stored = (
        choices(packs[name].teacher, target_head(), torch.device("cpu")) for name in ("bf16", "fp8+topk")
    )
    assert (computed == stored).float().mean() > 0.95  # bf16 logits have ties


def test_a_choice_may_lie_outside_the_draft_vocabulary(packs):
    assert not torch.isin(packs["fp8+topk"].teacher.choice_T, torch.tensor(DRAFT_IDS)).all()


def test_a_vanishing_tail_is_no_division_by_zero(packs):
    """A drafter that is certain leaves nothing to the tail, which the teacher still believes in."""
    teacher = packs["fp8+topk"].teacher[:5]
    certain = torch.zeros(1, 5, len(DRAFT_IDS)).scatter(2, teacher.ids_TR[None, :, :1], 1e4)
    head, drafts = torch.eye(len(DRAFT_IDS)).requires_grad_(), certain.requires_grad_()
    result = soft_cross_entropy(drafts, head, teacher, head.detach(), torch.ones(1, 5))
    result.loss.backward()
    assert result.loss.isfinite() and drafts.grad.isfinite().all()


@pytest.mark.fault("base-vocab-map-kept")
def test_logits_over_another_vocabulary_are_refused_with_both_hashes(spec, tmp_path):
    run(replace(spec, states_folder=write_states(tmp_path / "first", layout="fp8+topk")))
    shifted = [token + 1 for token in DRAFT_IDS]
    other = write_states(tmp_path / "second", layout="fp8+topk", draft_ids=shifted)
    base = replace(spec, base_folder=spec.out_folder / "best", states_folder=other, out_folder=tmp_path / "next")
    found, own = (DraftVocab(VOCAB, ids).sha256 for ids in (shifted, DRAFT_IDS))
    with pytest.raises(
        BadInput, match=rf"20 tokens with the hash {found}, .* has one of 20 tokens with the hash {own}"
    ):
        run(base)


def test_logits_over_a_vocabulary_of_another_size_are_refused(spec, tmp_path):
    states = write_states(tmp_path / "first", layout="fp8+topk")
    other = replace(spec, states_folder=states, drafter=replace(spec.drafter, draft_vocab_tokens=12))
    with pytest.raises(BadInput, match=r"vocabulary of 20 tokens .* has one of 12 tokens"):
        run(other)


def test_a_drafter_from_scratch_takes_the_stores_vocabulary(spec, tmp_path):
    states = replace(spec, states_folder=write_states(tmp_path / "first", layout="fp8+topk"))
    run(states)
    assert (best(states)["d2t"] + torch.arange(20)).tolist() == DRAFT_IDS
