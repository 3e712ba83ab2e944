"""The training-time test of EAGLE-3 (arXiv 2503.01840, section 3.2): K drafting steps at every position.

Step 0 at position t reads ``embed(x[t+1])`` and the fused states ``g[t]``; step k reads ``embed(x[t+1+k])``
and the drafter's own output of step k-1 at t, sits at rotary position t+k, and drafts ``x[t+2+k]``, which is
compared with the teacher's word after ``x[t+1+k]``. A draft counts when the *drafted* token
belongs to an answer and lies in the same document.

Only rows that some step counts are computed; of the other positions the block needs the step-0 keys and
values alone. That is exact, and saves about half of the work where prompts are as long as answers.

Shapes: T positions of the pack; N rows; S predicted tokens; K unroll steps; D hidden size; A auxiliary
layers; H query heads; J key/value heads; E head width; W draft vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.eagle3.attention import CPU_BLOCK_ROWS, GPU_BLOCK_ROWS, attention_blocks, training_time_attention
from tasks.eagle3.drafter import Eagle3Drafter
from tasks.eagle3.precision import wide
from tasks.hidden_states.teacher import Teacher


@dataclass(frozen=True)
class Pack:
    """Documents laid end to end."""

    sample_ids: list[str]
    tokens_T: Tensor
    """Token ids, int64."""
    answer_T: Tensor
    """True on answer tokens."""
    start_T: Tensor
    """Position in the pack at which the position's document starts, int64."""
    aux_TAD: Tensor
    """Auxiliary states, [T, A*D]."""
    teacher: Teacher
    """What the target says after every token."""

    def to(self, device: torch.device) -> "Pack":
        """The pack on a device."""
        tokens_T, answer_T, start_T, aux_TAD = (
            t.to(device, non_blocking=True) for t in (self.tokens_T, self.answer_T, self.start_T, self.aux_TAD)
        )
        return Pack(self.sample_ids, tokens_T, answer_T, start_T, aux_TAD, self.teacher.to(device))


@dataclass(frozen=True)
class Plan:
    """Which positions of a pack are computed, and which draft predicts which token."""

    predictor_S: Tensor
    """Positions s whose teacher predicts an answer token x[s+1]."""
    row_of_KS: Tensor
    """Row that drafts that token at step k (position s - 1 - k); 0 where there is none."""
    counted_KS: Tensor
    """False where the document starts too late for step k."""
    rows_N: Tensor
    """Positions t that some step counts, increasing."""

    @property
    def counted(self) -> list[int]:
        """Counted drafts of every step."""
        return self.counted_KS.sum(1).tolist()


def plan_unroll(answer_T: Tensor, start_T: Tensor, steps: int) -> Plan:
    """Find the rows and drafts of a pack.

    Args:
        answer_T: True on answer tokens.
        start_T: Where each position's document starts.
        steps: Unroll steps K.
    """
    next_is_answer = answer_T[1:] & (start_T[1:] == start_T[:-1])
    predictor_S = next_is_answer.nonzero().squeeze(1)
    back_K1 = torch.arange(1, steps + 1, device=answer_T.device)[:, None]
    position_KS = predictor_S - back_K1
    counted_KS = position_KS >= start_T[predictor_S]
    rows_N = torch.unique(position_KS[counted_KS])
    row_of_KS = torch.searchsorted(rows_N, position_KS).clamp(max=max(len(rows_N) - 1, 0))
    return Plan(predictor_S, row_of_KS.where(counted_KS, 0), counted_KS, rows_N)


def unroll(drafter: Eagle3Drafter, embed_VD: Tensor, pack: Pack, plan: Plan) -> Tensor:
    """The drafter's normed states that draft each predicted token, [K, S, D] in the compute dtype.

    Args:
        drafter: The drafter.
        embed_VD: The target's embeddings.
        pack: Documents with their states.
        plan: From ``plan_unroll``.
    """
    layer, attention = drafter.midlayer, drafter.midlayer.self_attn
    starts_N = pack.start_T[plan.rows_N]
    blocks = attention_blocks(plan.rows_N, starts_N, GPU_BLOCK_ROWS if pack.tokens_T.is_cuda else CPU_BLOCK_ROWS)
    keys_JTE, values_JTE, x_N2D, residual_ND = _first_step(drafter, embed_VD, pack, plan.rows_N)
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    drafts = []
    prenorm_ND = residual_ND
    for k in range(len(plan.row_of_KS)):
        rotary = attention.rotary(plan.rows_N - starts_N + k)
        if k > 0:
            token_N = pack.tokens_T[(plan.rows_N + 1 + k).clamp(max=len(pack.tokens_T) - 1)]
            x_N2D, residual_ND = layer.enter(F.embedding(token_N, embed_VD), drafter.fed_back(prenorm_ND))
            key_NJE, value_NJE = attention.keys_values(x_N2D, rotary)
            own_keys.append(key_NJE)
            own_values.append(value_NJE)
        attended_NHE = training_time_attention(
            attention.queries(x_N2D, rotary), keys_JTE, values_JTE, own_keys, own_values, plan.rows_N, starts_N, blocks
        )
        prenorm_ND = layer.leave(attended_NHE, residual_ND)
        drafts.append(drafter.norm(prenorm_ND)[plan.row_of_KS[k]])
    return torch.stack(drafts).to(values_JTE.dtype)


def _first_step(
    drafter: Eagle3Drafter, embed_VD: Tensor, pack: Pack, rows_N: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Step-0 keys and values of all positions, and the input and residual of the rows."""
    layer, attention = drafter.midlayer, drafter.midlayer.self_attn
    position_T = torch.arange(len(pack.tokens_T), device=pack.tokens_T.device)
    # The last position of a document gets the next one's first token: no counted row can see that key.
    embed_TD = F.embedding(pack.tokens_T.roll(-1), embed_VD)
    x_T2D, residual_TD = layer.enter(embed_TD, drafter.fc(pack.aux_TAD.to(_input_dtype(drafter))))
    keys_TJE, values_TJE = attention.keys_values(x_T2D, attention.rotary(position_T - pack.start_T))
    keys_JTE, values_JTE = keys_TJE.transpose(0, 1).contiguous(), values_TJE.transpose(0, 1).contiguous()
    return keys_JTE, values_JTE, x_T2D[rows_N], residual_TD[rows_N]


def _input_dtype(drafter: Eagle3Drafter) -> torch.dtype:
    """bf16 states go straight into an autocast product, but not into a float32 one."""
    weight = drafter.fc.weight
    if torch.is_autocast_enabled(weight.device.type):
        return torch.get_autocast_dtype(weight.device.type)
    return weight.dtype


def loss_weights(plan: Plan, step_weight: float, counted_in_step: list[int], dtype: torch.dtype) -> Tensor:
    """Weight of every draft: ``step_weight ** k``, as a mean over an optimizer step's counted drafts.

    Args:
        plan: The pack's plan.
        step_weight: Decay from one unroll step to the next (0.8 in the paper's code).
        counted_in_step: Counted drafts of every unroll step, over all packs of the optimizer step.
        dtype: Of the result.

    Returns:
        [K, S].
    """
    scale = [step_weight**k / max(count, 1) for k, count in enumerate(counted_in_step)]
    scale_K1 = torch.tensor(scale, dtype=dtype, device=plan.counted_KS.device)[:, None]
    return wide(plan.counted_KS.to(dtype)) * scale_K1
