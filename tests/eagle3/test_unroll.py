"""The fast unroll against the slow one, in float64: loss, every logit, every gradient."""

from dataclasses import replace

import pytest
import torch
from slow_unroll import reference_loss
from small_drafters import VOCAB, random_drafter, random_pack, small_config

from tasks.eagle3 import unroll as module
from tasks.eagle3.soft_cross_entropy import soft_cross_entropy
from tasks.eagle3.unroll import loss_weights, plan_unroll, unroll
from tasks.hidden_states.top_logits import top_logits

STEP_WEIGHT = 0.8


def teacher_of(pack, lm_head, target_ids, top_k):
    """The pack's final states, or the highest logits that they give."""
    if top_k is None:
        return pack.teacher
    teacher = top_logits(lambda final_TD: final_TD @ lm_head.T, pack.teacher.final_TD, target_ids, top_k, VOCAB)
    draft_TW = pack.teacher.final_TD @ lm_head[target_ids].T
    return replace(teacher, logprobs_TR=draft_TW.log_softmax(-1).gather(1, teacher.ids_TR))  # in float64


def fast_loss(drafter, pack, embed, lm_head, target_ids, steps, top_k):
    teacher = teacher_of(pack, lm_head, target_ids, top_k)
    plan = plan_unroll(pack.answer_T, pack.start_T, steps)
    drafts = unroll(drafter, embed, pack, plan)
    weights = loss_weights(plan, STEP_WEIGHT, plan.counted, torch.float64)
    result = soft_cross_entropy(drafts, drafter.lm_head.weight, teacher[plan.predictor_S], lm_head[target_ids], weights)
    return result, drafts @ drafter.lm_head.weight.T, plan


def gradients(drafter, loss):
    drafter.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in drafter.named_parameters()}


def with_the_tail_as_one(top_k):
    """Cross entropy that knows the ``top_k`` likeliest tokens one by one and the others as one bucket."""

    def cross_entropy(p, q):
        top = p.argsort(descending=True)[:top_k]
        return -(p[top] * q[top].log()).sum() - (1 - p[top].sum()) * (1 - q[top].sum()).log()

    return cross_entropy


def compare(lengths, answers, steps, draft_vocab=11, block_rows=4, top_k=None, **shape):
    module.CPU_BLOCK_ROWS = block_rows
    drafter = random_drafter(small_config(draft_vocab=draft_vocab, **shape))
    pack = random_pack(lengths, answers)
    generator = torch.Generator().manual_seed(5)
    embed, lm_head = torch.randn(2, VOCAB, 12, generator=generator, dtype=torch.float64)
    target_ids = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
    result, logits_KSW, plan = fast_loss(drafter, pack, embed, lm_head, target_ids, steps, top_k)
    loss_of = {} if top_k is None else {"cross_entropy": with_the_tail_as_one(top_k)}
    slow, slow_logits = reference_loss(drafter, pack, embed, lm_head, target_ids, steps, STEP_WEIGHT, **loss_of)
    torch.testing.assert_close(result.loss, slow)
    counted = [(k, int(plan.predictor_S[s]) - 1 - k, s) for k, s in plan.counted_KS.nonzero().tolist()]
    assert {(k, t) for k, t, _ in counted} == set(slow_logits)
    for k, t, s in counted:
        torch.testing.assert_close(logits_KSW[k, s], slow_logits[k, t])
    fast_gradients, slow_gradients = gradients(drafter, result.loss), gradients(drafter, slow)
    for name, expected in slow_gradients.items():
        torch.testing.assert_close(fast_gradients[name], expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(autouse=True)
def restored_block_rows():
    rows = module.CPU_BLOCK_ROWS
    yield
    module.CPU_BLOCK_ROWS = rows


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_packed_documents_match_the_definition(steps):
    compare([9, 5, 7], [set(range(4, 9)), {3, 4}, {2, 3, 6}], steps)


def test_answer_from_the_first_token_on_matches():
    """The first tokens of a document have no position that could draft them."""
    compare([6, 4], [set(range(6)), set(range(4))], 4)


def test_whole_vocabulary_matches():
    compare([8], [set(range(3, 8))], 3, draft_vocab=VOCAB)


@pytest.mark.parametrize("top_k", [1, 4, 10])
def test_a_teacher_of_top_logits_matches(top_k):
    compare([9, 5, 7], [set(range(4, 9)), {3, 4}, {2, 3, 6}], 3, top_k=top_k)


def test_a_teacher_whose_top_logits_are_all_matches_one_of_final_states():
    """Without a tail the loss is the plain one; the reference knows nothing of top logits."""
    drafter, pack = random_drafter(small_config()), random_pack([9, 5], [set(range(4, 9)), {3, 4}])
    embed, lm_head = torch.randn(2, VOCAB, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    target_ids = torch.arange(11) * 2
    results = [fast_loss(drafter, pack, embed, lm_head, target_ids, 3, top_k)[0].loss for top_k in (None, 11)]
    torch.testing.assert_close(results[1], results[0])


def test_as_many_key_heads_as_heads_matches():
    compare([8, 3], [{4, 5, 6, 7}, {2}], 3, heads=2, key_heads=2)


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_output"])
def test_norm_flags_match(flag):
    compare([7, 6], [{3, 4, 5}, {4, 5}], 3, **{flag: True})


def test_scores_computed_again_in_the_backward_pass_match(monkeypatch):
    monkeypatch.setattr("tasks.eagle3.attention.RECOMPUTING_DEVICES", ("cpu",))
    compare([9, 5], [set(range(4, 9)), {3, 4}], 3)


def test_block_edges_inside_and_between_documents_match():
    compare([5, 11, 6], [{3, 4}, set(range(2, 11)), {5}], 3, block_rows=3)


def test_documents_of_one_and_two_tokens_are_harmless():
    compare([1, 2, 7], [{0}, {0, 1}, {5, 6}], 3)


def test_no_state_of_another_document_matters():
    drafter = random_drafter(small_config())
    embed = torch.randn(VOCAB, 12, dtype=torch.float64)
    pack = random_pack([6, 6], [set(), {3, 4, 5}])
    plan = plan_unroll(pack.answer_T, pack.start_T, 3)
    before = unroll(drafter, embed, pack, plan)
    pack.aux_TAD[:6] += 10
    pack.tokens_T[:6] = 0
    torch.testing.assert_close(unroll(drafter, embed, pack, plan), before, rtol=0, atol=0)


def test_a_draft_counts_when_the_drafted_token_is_an_answer():
    """x[5] is the only answer: step k drafts it from position 5 - 2 - k."""
    answer = torch.tensor([False] * 5 + [True, False])
    plan = plan_unroll(answer, torch.zeros(7, dtype=torch.long), 3)
    assert plan.predictor_S.tolist() == [4]
    assert plan.rows_N[plan.row_of_KS[:, 0]].tolist() == [3, 2, 1]
