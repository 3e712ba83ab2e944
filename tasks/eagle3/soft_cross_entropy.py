"""Soft cross entropy between the drafter and the teacher over the draft vocabulary, fused with both heads.

The logits of a pack at a draft vocabulary of 32,000 would be gigabytes in float32 and are never needed
together: a block of predicted tokens at a time gets its teacher distribution once, is compared with the
drafts of all K steps, and leaves only the gradients of the hidden states and of the head (the idea of
Liger Kernel's fused linear cross entropy, arXiv 2410.10989).

Shapes: K unroll steps; S predicted tokens; C predicted tokens of one block; D hidden size; W draft vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.eagle3.precision import wide

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
    drafts_KSD: Tensor, head_WD: Tensor, teacher_SD: Tensor, teacher_head_WD: Tensor, weight_KS: Tensor
) -> DraftLoss:
    """Sum of ``weight * -sum_w p_w log q_w``, p from the teacher and q from the drafter.

    Args:
        drafts_KSD: Normed drafter states that predict each token, in the compute dtype.
        head_WD: The drafter's lm_head, the master weight.
        teacher_SD: The target's final, normed state that predicts each token.
        teacher_head_WD: Rows of the target's lm_head that the draft vocabulary holds; restricting the softmax
            to them renormalises the teacher over the draft vocabulary.
        weight_KS: Weight of each draft; 0 where a step has none.
    """
    loss, weighted_K, drafted_KS = _Fused.apply(drafts_KSD, head_WD, teacher_SD, teacher_head_WD, weight_KS)
    return DraftLoss(loss, weighted_K, drafted_KS)


def block_rows(vocab: int, device: torch.device) -> int:
    """Rows of logits that fit one block."""
    return max(32, (CPU_BLOCK_BYTES if device.type == "cpu" else GPU_BLOCK_BYTES) // (4 * vocab))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, drafts_KSD: Tensor, head_WD: Tensor, teacher_SD: Tensor, teacher_head_WD: Tensor, weight_KS: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = head_WD.to(drafts_KSD.dtype)
        train_head = ctx.needs_input_grad[1]
        head_gradient_WD = torch.zeros_like(head_WD) if train_head else None
        gradient_KSD = torch.empty_like(drafts_KSD)
        weighted_K = torch.zeros(len(drafts_KSD), dtype=wide(weight_KS).dtype, device=drafts_KSD.device)
        drafted_KS = torch.empty(weight_KS.shape, dtype=torch.long, device=drafts_KSD.device)
        rows = block_rows(len(head_WD), drafts_KSD.device)
        for first in range(0, len(teacher_SD), rows):
            part = slice(first, first + rows)
            teacher_CW = wide(teacher_SD[part] @ teacher_head_WD.T).softmax(-1)
            for k, draft_CD in enumerate(drafts_KSD[:, part]):
                losses_C, slope_CW, drafted_KS[k, part] = _compare(draft_CD @ head.T, teacher_CW)
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


def _compare(logits_CW: Tensor, teacher_CW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, their slope by the logits (q - p), and the drafted ids of one step and block."""
    logits_CW = wide(logits_CW)
    highest_C, drafted_C = logits_CW.max(-1)
    agreement_C = torch.linalg.vecdot(teacher_CW, logits_CW)
    share_CW = torch.exp(logits_CW - highest_C[:, None])
    total_C = share_CW.sum(-1)
    losses_C = highest_C + total_C.log() - agreement_C
    return losses_C, share_CW.div_(total_C[:, None]).sub_(teacher_CW), drafted_C
