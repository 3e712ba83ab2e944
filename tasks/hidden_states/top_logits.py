"""The teacher's highest logits over the draft vocabulary, and which tokens the target may have chosen.

Both take logits from vLLM's own ``compute_logits``, which puts the parts of a sharded lm_head together, whatever
its quantisation: on some ranks it gives None, on others the logits of the whole vocabulary.

Shape legend: N rows of a step, C rows of a block, D hidden size, V target vocabulary, W draft vocabulary, R top-k.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.hidden_states.teacher import TopLogits

LogitsOf = Callable[[Tensor], Tensor | None]
"""Final states [C, D] to logits [C, V], a collective under tensor parallelism."""

# Float32 logits of one block: at a vocabulary of 163,840 a step of 8,192 tokens would take 5 GB.
BLOCK_BYTES = 128_000_000
# bf16 logits of 16 to 32 lie 0.125 apart, and a state in float8 moves them by a few times that.
NEAR_LOGITS = 1.0


def top_logits(
    logits_of: LogitsOf, final_ND: Tensor, target_ids_W: Tensor, top_k: int, vocab_tokens: int
) -> TopLogits | None:
    """The highest logits of every row.

    Args:
        logits_of: The lm_head.
        final_ND: The last states, after the final norm.
        target_ids_W: Target id of every draft id.
        top_k: Logits to keep, at most W.
        vocab_tokens: V.

    Returns:
        None on a rank that gets no logits.
    """
    rows = max(1, BLOCK_BYTES // (4 * vocab_tokens))
    blocks = [_top(logits_of(block_CD), target_ids_W, top_k) for block_CD in final_ND.split(rows)]
    found = [block for block in blocks if block is not None]
    return TopLogits.cat(found) if found else None


def _top(logits_CV: Tensor | None, target_ids_W: Tensor, top_k: int) -> TopLogits | None:
    if logits_CV is None:
        return None
    logits_CV = logits_CV.float()
    draft_CW = logits_CV[:, target_ids_W]
    draft_lse_C = draft_CW.logsumexp(-1)
    top_CR, ids_CR = draft_CW.topk(top_k, dim=-1)
    return TopLogits(ids_CR, top_CR - draft_lse_C[:, None], draft_lse_C, logits_CV.logsumexp(-1), logits_CV.argmax(-1))


def near_choices(logits_NV: Tensor) -> list[list[int]]:
    """The ids that a target with these logits may choose: the highest, and the second if it is nearly as high.

    Only the second: of logits that are all alike, as wrong states give, every token would be near.
    """
    top_N2, ids_N2 = logits_NV.float().topk(2, dim=-1)
    return _with_second(ids_N2[:, 0], ids_N2[:, 1], top_N2[:, 0] - top_N2[:, 1])


def near_stored_choices(teacher: TopLogits, target_ids_W: Tensor) -> list[list[int]]:
    """The same from what is stored: without a second where the choice is outside the draft vocabulary."""
    if teacher.ids_TR.shape[1] < 2:
        return [[choice] for choice in teacher.choice_T.tolist()]
    ids_N2 = target_ids_W[teacher.ids_TR[:, :2]]
    gap_N = teacher.logprobs_TR[:, 0] - teacher.logprobs_TR[:, 1]
    gap_N = gap_N.where((ids_N2 == teacher.choice_T[:, None]).any(1), torch.inf)
    second_N = ids_N2[:, 1].where(ids_N2[:, 0] == teacher.choice_T, ids_N2[:, 0])  # of a tie, the other one
    return _with_second(teacher.choice_T, second_N, gap_N)


def _with_second(first_N: Tensor, second_N: Tensor, gap_N: Tensor) -> list[list[int]]:
    rows = zip(first_N.tolist(), second_N.tolist(), (gap_N < NEAR_LOGITS).tolist(), strict=True)
    return [[first, second] if near else [first] for first, second, near in rows]
