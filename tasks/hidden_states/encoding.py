"""States and teachers as the tensors that a shard holds, and back.

float8_e4m3fn has three bits of mantissa, so a state comes back with a relative error of 2.7 % (measured on
normal noise: 2.65 %; a wider scale than bfloat16 changes that by less than 0.01 %). Scales are rounded up, so that
nothing exceeds float8's largest value, and values are divided by the rounded scale, so that the rounding adds no
error; a product of the two then fits bfloat16 with one rounding.

Shape legend: T tokens, A auxiliary layers, L layers of a tensor, D hidden size.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tasks.hidden_states.layout import (
    AUX,
    AUX_SCALE,
    CHOICE,
    DRAFT_LSE,
    FINAL,
    FINAL_SCALE,
    FULL_LSE,
    TOP_IDS,
    TOP_LOGPROBS,
    Layout,
)
from tasks.hidden_states.teacher import FinalStates, Teacher, TopLogits

STATE_DTYPE = torch.bfloat16
FLOAT8 = torch.float8_e4m3fn


def to_float8(states_TLD: Tensor) -> tuple[Tensor, Tensor]:
    """Values as float8 [T, L, D] and their scales as bfloat16 [T, L]."""
    wide_TLD = states_TLD.float()
    exact_TL = wide_TLD.abs().amax(-1) / torch.finfo(FLOAT8).max
    rounded_TL = exact_TL.to(STATE_DTYPE)
    scale_TL = rounded_TL.where(rounded_TL.float() >= exact_TL, (exact_TL * (1 + 2**-7)).to(STATE_DTYPE))
    divisor_TL = scale_TL.where(scale_TL != 0, 1).float()
    return (wide_TLD / divisor_TL[..., None]).to(FLOAT8), scale_TL


def from_float8(values_TLD: Tensor, scale_TL: Tensor) -> Tensor:
    """bfloat16 [T, L, D]."""
    return values_TLD.to(STATE_DTYPE) * scale_TL[..., None]


def encode_aux(layout: Layout, aux_TAD: Tensor, layers: int) -> dict[str, Tensor]:
    """Auxiliary layers, side by side, as they are stored.

    Args:
        layout: What is stored.
        aux_TAD: [T, A*D].
        layers: A.
    """
    return _encoded(layout != "bf16", aux_TAD, layers, AUX, AUX_SCALE)


def encode_teacher(layout: Layout, teacher: Teacher) -> dict[str, Tensor]:
    """The teacher as it is stored: final states for ``bf16`` and ``fp8``, top logits for ``fp8+topk``."""
    if isinstance(teacher, FinalStates):
        assert layout != "fp8+topk"
        return _encoded(layout != "bf16", teacher.final_TD, 1, FINAL, FINAL_SCALE)
    assert layout == "fp8+topk"
    return {
        TOP_IDS: teacher.ids_TR.int(),
        TOP_LOGPROBS: teacher.logprobs_TR.half(),
        DRAFT_LSE: teacher.draft_lse_T.float(),
        FULL_LSE: teacher.full_lse_T.float(),
        CHOICE: teacher.choice_T.int(),
    }


def decode_aux(tensors: Mapping[str, Tensor]) -> Tensor:
    """Auxiliary layers side by side, bfloat16 [T, A*D]."""
    return _decoded(tensors, AUX, AUX_SCALE)


def decode_teacher(tensors: Mapping[str, Tensor]) -> Teacher:
    """The teacher, final states in bfloat16 and logits in float32."""
    if FINAL in tensors:
        return FinalStates(_decoded(tensors, FINAL, FINAL_SCALE))
    return TopLogits(
        ids_TR=tensors[TOP_IDS].long(),
        logprobs_TR=tensors[TOP_LOGPROBS].float(),
        draft_lse_T=tensors[DRAFT_LSE],
        full_lse_T=tensors[FULL_LSE],
        choice_T=tensors[CHOICE].long(),
    )


def _encoded(small: bool, states_TX: Tensor, layers: int, name: str, scale_name: str) -> dict[str, Tensor]:
    if not small:
        return {name: states_TX.to(STATE_DTYPE)}
    values_TLD, scale_TL = to_float8(states_TX.unflatten(1, (layers, -1)))
    return {name: values_TLD.flatten(1), scale_name: scale_TL}


def _decoded(tensors: Mapping[str, Tensor], name: str, scale_name: str) -> Tensor:
    if scale_name not in tensors:
        return tensors[name]
    scale_TL = tensors[scale_name]
    return from_float8(tensors[name].unflatten(1, (scale_TL.shape[1], -1)), scale_TL).flatten(1)
