"""Which captured states cannot be right: a sample's statistics, and the teacher gate over all of them.

Shape legend: T tokens of a sample, D hidden size, X values of a token, Y factors of a token.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch

from tasks.errors import BadProduct
from tasks.hidden_states.encoding import FLOAT8
from tasks.hidden_states.layout import AUX, AUX_SCALE, DRAFT_LSE, FINAL, FINAL_SCALE, FULL_LSE, TOP_LOGPROBS
from tasks.hidden_states.packing import Rows

MIN_TEACHER_AGREEMENT = 0.97
MIN_TEACHER_SAMPLES = 20
MAX_BAD_SHARE, MAX_BAD_SAMPLES = 0.01, 3


def fault_of(stored: Rows, tokens: int, layer_ids: list[int]) -> str | None:
    """Why a sample's states cannot be right, or None.

    They are looked at as they are stored: this runs inside vLLM, on one thread, while the other ranks wait, and
    decoding a sample would take as long as its prefill.

    Args:
        stored: The sample's tensors by their names in the shard.
        tokens: Rows that there must be.
        layer_ids: Names of the auxiliary layers, for the reason.
    """
    rows = min(len(tensor) for tensor in stored.values())
    if rows != tokens:
        return f"{rows} rows were captured for {tokens} tokens (is prefix caching on?)"
    states = _states(stored, layer_ids)
    for name, (values_TX, factors_TY) in states.items():
        bits_TX = _bits(values_TX)
        if not _all_finite(values_TX) or not factors_TY.isfinite().all():
            return f"{name} has NaN or infinite values"
        if values_TX.shape[1] > 1 and (bits_TX == bits_TX[:, :1]).all():
            return f"all columns of {name} are equal"
        if tokens > 1 and (bits_TX == bits_TX[:1]).all() and (factors_TY == factors_TY[:1]).all():
            return f"{name} is the same for every token"
    layers = [name for name in states if name.startswith("layer")]
    for left, right in pairwise(layers):
        if all(
            torch.equal(one, other)
            for one, other in zip(map(_bits, states[left]), map(_bits, states[right]), strict=True)
        ):
            return f"{left} and {right} are equal"
    return None


def _states(stored: Rows, layer_ids: list[int]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Layers and teacher by name: values of each token, and what they are multiplied by or relative to."""
    none_T0 = stored[AUX].new_empty((len(stored[AUX]), 0), dtype=torch.float32)
    layers = len(layer_ids)
    scales = stored[AUX_SCALE].chunk(layers, dim=1) if AUX_SCALE in stored else [none_T0] * layers
    parts = zip(layer_ids, stored[AUX].chunk(layers, dim=1), scales, strict=True)
    states = {f"layer {j}": (values_TD, scale_T1) for j, values_TD, scale_T1 in parts}
    if FINAL in stored:
        states["the final state"] = (stored[FINAL], stored.get(FINAL_SCALE, none_T0))
    else:
        lse_T2 = torch.stack([stored[DRAFT_LSE], stored[FULL_LSE]], dim=1)
        states["the teacher's logits"] = (stored[TOP_LOGPROBS], lse_T2)
    return states


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Values as integers, which float8 needs in order to be compared."""
    return values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.element_size()])


def _all_finite(values: torch.Tensor) -> bool:
    if values.dtype == FLOAT8:  # it has no infinity, and its NaN has all bits set but the sign
        return bool(((_bits(values) & 0x7F) != 0x7F).all())
    return bool(values.isfinite().all())


def check_bad_samples(bad: Mapping[str, str], tried: int) -> None:
    """Whether so many samples are bad that the rest cannot be trusted.

    Raises:
        BadProduct: More than 1 % and more than 3 of them are.
    """
    if len(bad) > MAX_BAD_SAMPLES and len(bad) > MAX_BAD_SHARE * tried:
        sample_id, reason = next(iter(bad.items()))
        raise BadProduct(
            f"{len(bad)} of {tried} samples have hidden states that cannot be right (limit {MAX_BAD_SHARE:.0%}); "
            f"the first, {sample_id}: {reason}. Check the target's dtype and the engine's arguments."
        )


def check_teacher(agrees: Mapping[str, bool], folder: Path) -> float:
    """Whether what is stored of the teacher gives the token that vLLM itself picks.

    A second token less than one logit below the highest counts too: bf16 logits tie, and float8 moves them.
    The gate sees a wrong or un-normed last state and rows of another request; it cannot see wrong auxiliary
    layers.

    Args:
        agrees: Sample id to whether its last position agrees.
        folder: Where the states are, for the message.

    Returns:
        The share that agrees; 1.0 when nothing was checked.

    Raises:
        BadProduct: Fewer than 97 % of at least 20 samples agree.
    """
    share = sum(agrees.values()) / len(agrees) if agrees else 1.0
    if len(agrees) >= MIN_TEACHER_SAMPLES and share < MIN_TEACHER_AGREEMENT:
        raise BadProduct(
            f"teacher gate: for {sum(agrees.values())} of {len(agrees)} samples ({share:.1%}) what is stored of the "
            f"final state gives the token that vLLM picks; {MIN_TEACHER_AGREEMENT:.0%} are needed. Likely the state is "
            "not the one after the last layer and the final norm, or rows were mixed up by a vLLM that packs its "
            f"batches otherwise. Nothing in {folder} can be trusted: delete it once the cause is found."
        )
    return share
