"""Real vLLM on a real small model: the same samples captured in every layout, compared and trained from.

One engine for the session (``conftest.engine``).
"""

import csv
import dataclasses

import pytest
import torch

from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec, TrainingSpec
from tasks.eagle3.target_head import read_target_head
from tasks.eagle3.train import train
from tasks.eagle3.validation import highest
from tasks.hidden_states.checks import check_teacher
from tasks.hidden_states.layout import LAYOUTS
from tasks.hidden_states.reader import StateReader
from tasks.recipe import Drafter, Training
from tasks.system.child import Reporter
from tests.hidden_states.samples import DRAFT_VOCAB_TOKENS, LAYER_IDS, STEP_TOKENS, make_spec, run_capture

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def captured(engine, target_folder, responses, tmp_path_factory):
    """Layout to what was captured and a reader of it."""
    found = {}
    for layout in LAYOUTS:
        folder = tmp_path_factory.mktemp(layout)
        spec = make_spec(target_folder, responses, folder, layout=layout, max_batched_tokens=STEP_TOKENS)
        found[layout] = (run_capture(engine, spec, folder), StateReader(spec.out_folder))
    return found


@pytest.fixture(scope="module")
def samples(captured):
    """Layout to sample id to sample."""
    return {
        layout: {entry.sample_id: reader.read(entry) for entry in reader.samples}
        for layout, (_, reader) in captured.items()
    }


@pytest.fixture(scope="module")
def head(target_folder):
    return read_target_head(target_folder).lm_head_VD


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Mean over the tokens."""
    return ((found.float() - wanted.float()).norm(dim=1) / wanted.float().norm(dim=1)).mean().item()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_sample_is_there_and_the_teacher_agrees(captured, responses, layout):
    work, reader = captured[layout]
    assert {entry.sample_id for entry in reader.samples} == {r.sample_id for r in responses}
    assert check_teacher(work.agrees, reader._folder) >= 0.97


def test_float8_states_are_within_three_percent_of_the_bf16_ones(samples):
    for sample_id, exact in samples["bf16"].items():
        small = samples["fp8"][sample_id]
        width = exact.aux_TAD.shape[1] // len(LAYER_IDS)
        for found, wanted in zip(small.aux_TAD.split(width, 1), exact.aux_TAD.split(width, 1), strict=True):
            assert relative_error(found, wanted) < 0.03
        assert relative_error(small.teacher.final_TD, exact.teacher.final_TD) < 0.03


def test_the_auxiliary_states_of_both_small_layouts_are_the_same(samples):
    for sample_id, sample in samples["fp8"].items():
        assert torch.equal(sample.aux_TAD, samples["fp8+topk"][sample_id].aux_TAD)


def test_stored_logits_are_those_of_the_bf16_states_within_the_noise_of_bf16(captured, samples, head):
    """vLLM rounds its logits to bf16, which at 16 to 32 leaves steps of 0.125."""
    target_ids_W = captured["fp8+topk"][1].draft_vocab().to_map().target_ids_W
    for sample_id, sample in samples["bf16"].items():
        logits_TV = sample.teacher.final_TD.float() @ head.float().T
        found = samples["fp8+topk"][sample_id].teacher
        wanted_TR = logits_TV[:, target_ids_W].gather(1, found.ids_TR)
        noise_TR = wanted_TR.abs() * 2**-8 + 0.02
        assert ((found.logits_TR - wanted_TR).abs() <= noise_TR).float().mean() > 0.999
        torch.testing.assert_close(found.full_lse_T, logits_TV.logsumexp(-1), atol=0.05, rtol=0.005)
        torch.testing.assert_close(found.draft_lse_T, logits_TV[:, target_ids_W].logsumexp(-1), atol=0.05, rtol=0.005)


def test_the_stored_choice_is_that_of_the_bf16_states_but_for_ties(samples, head):
    same = [
        highest(sample.teacher.final_TD, head) == samples["fp8+topk"][sample_id].teacher.choice_T
        for sample_id, sample in samples["bf16"].items()
    ]
    assert torch.cat(same).float().mean() > 0.98


def test_trainings_from_every_layout_have_close_losses(captured, target_folder, tmp_path):
    """The same drafter, the same order; of the top logits' loss the tail is a little less than all its tokens."""
    drafter = Drafter(draft_vocab_tokens=DRAFT_VOCAB_TOKENS, layer_ids=LAYER_IDS, intermediate_size=256)
    initialize(
        InitialDrafterSpec(target_folder=target_folder, out_folder=tmp_path / "initial", drafter=drafter),
        Reporter(tmp_path / "progress"),
    )
    training = Training(pack_tokens=512, learning_rate=1e-3, validate_every_steps=1000, device="cpu", train_head=False)
    losses = {}
    for layout, (_, reader) in captured.items():
        spec = TrainingSpec(
            target_folder=target_folder,
            base_folder=tmp_path / "initial",
            states_folder=reader._folder,
            out_folder=tmp_path / layout,
            reserve_bytes=0,
            drafter=drafter,
            training=dataclasses.replace(training, epochs=1),
        )
        train(spec, Reporter(tmp_path / "progress"))
        rows = csv.DictReader((tmp_path / layout / "curve.csv").open())
        losses[layout] = [float(row["loss"]) for row in rows if row["loss"]]
    print(losses)
    assert losses["bf16"][-1] < losses["bf16"][0]
    assert losses["fp8"] == pytest.approx(losses["bf16"], rel=0.02)
    assert losses["fp8+topk"] == pytest.approx(losses["bf16"], rel=0.1)
