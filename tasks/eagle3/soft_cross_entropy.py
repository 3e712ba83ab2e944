"""Soft cross entropy between the drafter and the teacher over the draft vocabulary, fused with both heads.

The logits of a pack at a draft vocabulary of 32,000 would be gigabytes in float32 and are never needed
together: a block of predicted tokens at a time gets its teacher distribution once, is compared with the
drafts of all K steps, and leaves only the gradients of the hidden states and of the head (the idea of
Liger Kernel's fused linear cross entropy, arXiv 2410.10989).

Where only the teacher's R highest logits are stored, their log-sum-exp gives their probabilities p exactly, and what
is left over, p_tail. The tokens outside count as one: ``-sum_top p log q - p_tail log q_tail``, with q_tail what the
drafter gives to all of them. The drafter then learns how much to leave to the tail and keeps its own word on how
to share it out. Measured on SmolLM2 over the demo's prompts and a draft vocabulary of 4,096, where the tail of R = 64
holds 5 %: the slope by the logits is 1.3 % from that of the whole teacher; with the tail dropped and the rest scaled up
to 1 it would be 8.7 %.

Shapes: K unroll steps; S predicted tokens; C predicted tokens of one block; D hidden size; W draft vocabulary; R top-k.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.eagle3.precision import wide
from tasks.hidden_states.teacher import FinalStates, Teacher, TopLogits

# One block of float32 logits: small enough for the last-level cache, large enough for the matrix products.
CPU_BLOCK_BYTES = 16_000_000
GPU_BLOCK_BYTES = 512_000_000


@dataclass(frozen=True)
class DraftLoss:
    """What comparing a pack's drafts with the teacher gave."""

    loss: Tensor
    """Weighted sum over steps and predicted tokens; differentiable."""
    weighted_K: Tensor
    """Its share of every step, without gradient."""
    drafted_KS: Tensor
    """The draft id that each step drafts for each predicted token."""


def soft_cross_entropy(
    drafts_KSD: Tensor, head_WD: Tensor, teacher: Teacher, teacher_head_WD: Tensor, weight_KS: Tensor
) -> DraftLoss:
    """Sum of ``weight * -sum_w p_w log q_w``, p from the teacher and q from the drafter.

    Args:
        drafts_KSD: Normed drafter states that predict each token, in the compute dtype.
        head_WD: The drafter's lm_head, the master weight.
        teacher: What the target says of each token: S rows.
        teacher_head_WD: Rows of the target's lm_head that the draft vocabulary holds, in the compute dtype, for final
            states; restricting the softmax to them renormalises the teacher over the draft vocabulary.
        weight_KS: Weight of each draft; 0 where a step has none.
    """
    loss, weighted_K, drafted_KS = _Fused.apply(drafts_KSD, head_WD, teacher, teacher_head_WD, weight_KS)
    return DraftLoss(loss, weighted_K, drafted_KS)


def block_rows(vocab: int, device: torch.device) -> int:
    """Rows of logits that fit one block."""
    return max(32, (CPU_BLOCK_BYTES if device.type == "cpu" else GPU_BLOCK_BYTES) // (4 * vocab))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, drafts_KSD: Tensor, head_WD: Tensor, teacher: Teacher, teacher_head_WD: Tensor, weight_KS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = head_WD.to(drafts_KSD.dtype)
        train_head = ctx.needs_input_grad[1]
        head_gradient_WD = torch.zeros_like(head_WD) if train_head else None
        gradient_KSD = torch.empty_like(drafts_KSD)
        weighted_K = torch.zeros(len(drafts_KSD), dtype=wide(weight_KS).dtype, device=drafts_KSD.device)
        drafted_KS = torch.empty(weight_KS.shape, dtype=torch.long, device=drafts_KSD.device)
        rows = block_rows(len(head_WD), drafts_KSD.device)
        for first in range(0, len(teacher), rows):
            part = slice(first, first + rows)
            wanted = _wanted(teacher[part], teacher_head_WD)
            for k, draft_CD in enumerate(drafts_KSD[:, part]):
                losses_C, slope_CW, drafted_KS[k, part] = _compare(wide(draft_CD @ head.T), wanted)
                weighted_K[k] += losses_C @ weight_KS[k, part]
                slope_CW = slope_CW.mul_(weight_KS[k, part, None]).to(head.dtype)
                gradient_KSD[k, part] = slope_CW @ head
                if head_gradient_WD is not None:
                    head_gradient_WD += slope_CW.T @ draft_CD
        ctx.save_for_backward(gradient_KSD, head_gradient_WD)
        ctx.mark_non_differentiable(weighted_K, drafted_KS)
        return weighted_K.sum(), weighted_K, drafted_KS

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient_KSD, head_gradient_WD = ctx.saved_tensors
        scale = gradients[0]
        head = None if head_gradient_WD is None else head_gradient_WD * scale
        return gradient_KSD * scale, head, None, None, None


@dataclass(frozen=True)
class _Top:
    """A teacher of which R tokens are known one by one."""

    ids_CR: Tensor
    share_CR: Tensor
    """Their probabilities."""
    tail_C: Tensor
    """Probability of all others together."""


def _wanted(teacher: Teacher, teacher_head_WD: Tensor) -> Tensor | _Top:
    """The teacher's distribution: of all draft tokens [C, W], or of the highest."""
    if isinstance(teacher, FinalStates):
        return wide(teacher.final_TD.to(teacher_head_WD.dtype) @ teacher_head_WD.T).softmax(-1)
    return _top(teacher, len(teacher_head_WD))


def _top(teacher: TopLogits, vocab: int) -> _Top:
    share_CR = wide(teacher.logprobs_TR).exp()
    total_C = share_CR.sum(-1)
    tail_C = (1 - total_C).clamp(min=0) if share_CR.shape[1] < vocab else torch.zeros_like(total_C)
    # Stored in float16, the probabilities may sum to a little more than 1.
    return _Top(teacher.ids_TR, share_CR / (total_C + tail_C)[:, None], tail_C)


def _compare(logits_CW: Tensor, wanted: Tensor | _Top) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, their slope by the logits, and the drafted ids of one step and block."""
    highest_C, drafted_C = logits_CW.max(-1)
    share_CW = torch.exp(logits_CW - highest_C[:, None])
    if isinstance(wanted, _Top):
        return *_compare_top(logits_CW.gather(1, wanted.ids_CR) - highest_C[:, None], share_CW, wanted), drafted_C
    agreement_C = torch.linalg.vecdot(wanted, logits_CW)
    total_C = share_CW.sum(-1)
    losses_C = highest_C + total_C.log() - agreement_C
    return losses_C, share_CW.div_(total_C[:, None]).sub_(wanted), drafted_C


def _compare_top(logits_CR: Tensor, share_CW: Tensor, top: _Top) -> tuple[Tensor, Tensor]:
    """Losses and slope, from the logits of the known tokens and ``exp`` of all, which becomes the slope.

    The slope is q - p for the known tokens, and q - p_tail q / q_tail for the others.
    """
    top_share_CR = share_CW.gather(1, top.ids_CR)
    # Summed without the others instead of subtracted: where they hold nearly everything a difference has no digits.
    share_CW.scatter_(1, top.ids_CR, 0)
    tail_share_C = share_CW.sum(-1).clamp(min=torch.finfo(share_CW.dtype).tiny)
    total_C = tail_share_C + top_share_CR.sum(-1)
    agreement_C = torch.linalg.vecdot(top.share_CR, logits_CR) + top.tail_C * tail_share_C.log()
    losses_C = total_C.log() - agreement_C
    share_CW.mul_((1 / total_C - top.tail_C / tail_share_C)[:, None])
    share_CW.scatter_(1, top.ids_CR, top_share_CR / total_C[:, None] - top.share_CR)
    return losses_C, share_CW
