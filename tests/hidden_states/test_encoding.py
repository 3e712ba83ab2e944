"""What the layouts make of states: how far float8 is from bf16, and top logits from the states' own. No vLLM."""

import pytest
import torch

from tasks.hidden_states.encoding import from_float8, to_float8
from tasks.hidden_states.layout import LAYOUTS
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.teacher import FinalStates, TopLogits
from tasks.hidden_states.top_logits import near_choices, near_stored_choices, top_logits
from tests.hidden_states.small_store import STORES, TOP_K, VOCAB, make_states, make_teacher, write

FLOAT8_ERROR = 0.027
"""Relative, of normal noise: three bits of mantissa."""


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def read_first(tmp_path, layout):
    write(tmp_path, range(1), store=STORES[layout])
    reader = StateReader(tmp_path)
    return reader.read(reader.samples[0])


def test_float8_states_are_within_the_stated_error_of_the_bf16_ones(tmp_path):
    aux_TAD, final_TD = make_states(0)
    found = read_first(tmp_path, "fp8")
    assert found.aux_TAD.dtype == found.teacher.final_TD.dtype == torch.bfloat16
    assert 0.02 < relative_error(found.aux_TAD, aux_TAD) < FLOAT8_ERROR
    assert 0.02 < relative_error(found.teacher.final_TD, final_TD) < FLOAT8_ERROR


def test_the_auxiliary_states_of_both_small_layouts_are_the_same(tmp_path):
    found = [read_first(tmp_path / layout, layout).aux_TAD for layout in ("fp8", "fp8+topk")]
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ids_and_mask_do_not_depend_on_the_layout(tmp_path, layout):
    found, plain = read_first(tmp_path / layout, layout), read_first(tmp_path / "plain", "bf16")
    assert torch.equal(found.token_ids_T, plain.token_ids_T)
    assert torch.equal(found.loss_mask_T, plain.loss_mask_T)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 447.0, 1e6, 1e30])
def test_states_of_any_size_keep_their_precision(size):
    states_TLD = torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(0)) * size
    found = from_float8(*to_float8(states_TLD))
    assert relative_error(found, states_TLD) < 0.03


def test_every_layer_and_token_has_a_scale_of_its_own():
    states_TLD = torch.ones(2, 2, 4) * torch.tensor([[1.0, 1e4], [1e-4, 3.0]])[:, :, None]
    values_TLD, scale_TL = to_float8(states_TLD)
    assert scale_TL.shape == (2, 2)
    assert relative_error(from_float8(values_TLD, scale_TL), states_TLD) < 0.01


def test_the_largest_value_of_a_row_does_not_overflow():
    """A scale that was rounded down would make NaN of it: 448 is float8's largest value."""
    largest = torch.linspace(1, 2, 1000)[:, None, None]
    assert from_float8(*to_float8(largest)).isfinite().all()


def test_a_row_of_zeros_stays_one():
    assert torch.equal(from_float8(*to_float8(torch.zeros(1, 1, 4))), torch.zeros(1, 1, 4).bfloat16())


def head() -> torch.Tensor:
    return torch.randn(VOCAB.vocab_tokens, 32, generator=torch.Generator().manual_seed(-1)).double()


def test_stored_logits_are_those_of_the_states_within_the_noise_of_bf16(tmp_path):
    _, final_TD = make_states(0)
    logits_TW = final_TD.double() @ head()[VOCAB.target_ids].T
    found = read_first(tmp_path, "fp8+topk").teacher
    assert isinstance(found, TopLogits)
    wanted_TR, ids_TR = logits_TW.topk(TOP_K)
    assert torch.equal(found.ids_TR, ids_TR)
    bf16_noise_TR = wanted_TR.abs() * 2**-8
    assert ((found.logits_TR - wanted_TR).abs() <= bf16_noise_TR.clamp(min=0.01)).all()


def test_both_log_sum_exps_and_the_choice_are_over_their_own_vocabularies(tmp_path):
    _, final_TD = make_states(0)
    logits_TV = final_TD.double() @ head().T
    found = read_first(tmp_path, "fp8+topk").teacher
    torch.testing.assert_close(found.full_lse_T, logits_TV.logsumexp(-1).float())
    torch.testing.assert_close(found.draft_lse_T, logits_TV[:, VOCAB.target_ids].logsumexp(-1).float())
    assert torch.equal(found.choice_T, logits_TV.argmax(-1))
    outside = ~torch.isin(found.choice_T, torch.tensor(VOCAB.target_ids))
    assert outside.any(), "some choices must lie outside the draft vocabulary for this to show anything"


def test_rows_are_looked_at_in_blocks_of_bounded_memory(monkeypatch):
    _, final_TD = make_states(0)
    whole = make_teacher("fp8+topk", final_TD)
    monkeypatch.setattr("tasks.hidden_states.top_logits.BLOCK_BYTES", 3 * 4 * VOCAB.vocab_tokens)
    seen = []

    def logits_of(block_CD):
        seen.append(len(block_CD))
        return block_CD.float() @ head().float().T

    blocks = top_logits(logits_of, final_TD, torch.tensor(VOCAB.target_ids), TOP_K, VOCAB.vocab_tokens)
    assert seen == [3] * 6 + [2]
    torch.testing.assert_close(vars(blocks), vars(whole))


def test_a_rank_that_gets_no_logits_stores_none_and_takes_part_all_the_same():
    asked = []
    found = top_logits(lambda block_CD: asked.append(block_CD), torch.zeros(20, 4), torch.arange(3), 2, 10)
    assert found is None and len(asked) == 1


def test_the_gate_accepts_the_second_token_only_when_it_is_near():
    logits_NV = torch.tensor([[0.0, 9.0, 8.5, 1.0], [0.0, 9.0, 7.0, 8.0], [5.0, 5.0, 5.0, 5.0]])
    first, second, tie = near_choices(logits_NV)
    assert (first, second, len(tie)) == ([1, 2], [1], 2)


def test_the_gate_reads_the_same_from_stored_logits():
    """Draft ids 0..2 are the target's 1, 2 and 3; its 0 is outside and has no logit of its own."""
    logits_NV = torch.tensor([[0.0, 9.0, 8.5, 1.0], [0.0, 9.0, 7.0, 8.0], [9.0, 8.5, 8.4, 0.0]])
    target_ids_W = torch.tensor([1, 2, 3])
    teacher = top_logits(lambda final_ND: final_ND, logits_NV, target_ids_W, 2, 4)
    assert near_stored_choices(teacher, target_ids_W) == [[1, 2], [1], [0]]


def test_teachers_are_cut_picked_and_joined_by_rows():
    _, final_TD = make_states(0)
    for layout in LAYOUTS:
        teacher = make_teacher(layout, final_TD)
        joined = type(teacher).cat([teacher[:7], teacher[torch.tensor([3, 9])]])
        assert len(joined) == 9
        name = "final_TD" if isinstance(teacher, FinalStates) else "ids_TR"
        assert torch.equal(vars(joined)[name][8], vars(teacher)[name][9])
