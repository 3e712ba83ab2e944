"""Which captured states cannot be right: a sample's statistics, and the teacher gate over all of them.

Shape legend: T tokens of a sample, A auxiliary layers, D hidden size.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch

from tasks.errors import BadProduct

MIN_TEACHER_AGREEMENT = 0.97
MIN_TEACHER_SAMPLES = 20
MAX_BAD_SHARE, MAX_BAD_SAMPLES = 0.01, 3


def fault_of(aux_TAD: torch.Tensor, final_TD: torch.Tensor, tokens: int, layer_ids: list[int]) -> str | None:
    """Why a sample's states cannot be right, or None.

    Args:
        aux_TAD: [T, A*D].
        final_TD: [T, D].
        tokens: Rows that there must be.
        layer_ids: Names of the auxiliary layers, for the reason.
    """
    if len(final_TD) != tokens or len(aux_TAD) != tokens:
        return f"{len(final_TD)} rows were captured for {tokens} tokens (is prefix caching on?)"
    layers = dict(zip([f"layer {j}" for j in layer_ids], aux_TAD.split(final_TD.shape[1], dim=1), strict=True))
    for name, states_TD in {**layers, "the final state": final_TD}.items():
        if not torch.isfinite(states_TD).all():
            return f"{name} has NaN or infinite values"
        if (states_TD == states_TD[:, :1]).all():
            return f"all columns of {name} are equal"
        if tokens > 1 and (states_TD == states_TD[:1]).all():
            return f"{name} is the same for every token"
    names = list(layers)
    for left, right in pairwise(names):
        if torch.equal(layers[left], layers[right]):
            return f"{left} and {right} are equal"
    return None


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
    """Whether the stored final state, through the lm_head, gives the token that vLLM itself picks.

    It sees a wrong or un-normed last state and rows of another request; it cannot see wrong
    auxiliary layers.

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
            f"teacher gate: for {sum(agrees.values())} of {len(agrees)} samples ({share:.1%}) the captured final "
            f"state gives the token that vLLM picks; {MIN_TEACHER_AGREEMENT:.0%} are needed. Likely the state is not "
            "the one after the last layer and the final norm, or rows were mixed up by a vLLM that packs its "
            f"batches otherwise. Nothing in {folder} can be trusted: delete it once the cause is found."
        )
    return share
