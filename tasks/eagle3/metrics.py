"""Acceptance length from hits.

Shapes: K drafting steps; S predicted tokens.
"""

from torch import Tensor


def conditional_acceptances(hits_KS: Tensor, counted_KS: Tensor) -> list[tuple[int, int]]:
    """For every step: how often it hit, and of how many times that all earlier steps hit.

    Both are given by the position that drafts: column i of step k must come from the same position for all
    k, which ``by_position`` arranges.
    """
    counts = []
    alive_S = counted_KS[0]
    for hit_S, counted_S in zip(hits_KS, counted_KS, strict=True):
        tried_S = alive_S & counted_S
        alive_S = tried_S & hit_S
        counts.append((int(alive_S.sum()), int(tried_S.sum())))
    return counts


def acceptance_length(counts: list[tuple[int, int]]) -> float:
    """Mean tokens of a verification: 1 + a_0 + a_0 a_1 + ... with conditional acceptances a_k.

    Args:
        counts: Hits and tries of every step.
    """
    length, all_hit = 1.0, 1.0
    for hits, tries in counts:
        all_hit *= hits / tries if tries else 0.0
        length += all_hit
    return length
