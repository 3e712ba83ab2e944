"""Better, not better, or cannot tell: a paired bootstrap over prompts.

Prompts are resampled with replacement, the same ones for both drafters, and the difference of the two
acceptance lengths (1 + accepted / drafts, summed over the resampled prompts) is taken each time. The
percentile interval of these differences decides (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).

- not better: the interval ends at or below the least gain that counts, or the trained drafter is below the
  least useful length: one that gives 1.1 tokens a step only costs, however surely it beats a base of 1.0;
- better: the interval lies above zero and the difference reaches the least gain;
- cannot tell: otherwise, and always with fewer than twenty prompts, where the bootstrap is too narrow.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.recipe import Evaluation

RESAMPLES = 10_000
SEED = 0
LEAST_PROMPTS = 20

# Shape legend: N prompts, 2 the sums (accepted tokens, verification steps), R resamples.


@dataclass(frozen=True)
class Verdict:
    """How the trained drafter compares with the base, on the prompts that both answered."""

    verdict: Literal["better", "not-better", "cannot-tell"]
    difference: float
    low: float
    high: float
    prompts: int

    def sentence(self, confidence: float) -> str:
        """The verdict in words."""
        claim = {
            "better": "The trained drafter is better than its base",
            "not-better": "The trained drafter is not better than its base",
            "cannot-tell": "Whether the trained drafter is better than its base cannot be told from these prompts",
        }[self.verdict]
        return (
            f"{claim}: acceptance length {self.difference:+.3f} "
            f"({confidence:.0%} interval {self.low:+.3f} to {self.high:+.3f}, paired over {self.prompts} prompts)."
        )


def judge(base: dict[str, list[int]], trained: dict[str, list[int]], spec: Evaluation) -> Verdict:
    """Compare two drafters by their per-prompt acceptance histograms.

    Args:
        base: Sample id to verification steps by number of accepted draft tokens.
        trained: The same for the trained drafter.
        spec: Confidence of the interval, and what counts as a gain.
    """
    both = sorted(base.keys() & trained.keys())
    if not both:
        return Verdict("cannot-tell", 0.0, 0.0, 0.0, 0)
    base_N2, trained_N2 = _sums(base, both), _sums(trained, both)
    picks_RN = np.random.default_rng(SEED).integers(len(both), size=(RESAMPLES, len(both)))
    differences_R = _length(trained_N2[picks_RN].sum(axis=1)) - _length(base_N2[picks_RN].sum(axis=1))
    tail = (1 - spec.confidence) / 2
    low, high = (float(x) for x in np.quantile(differences_R, [tail, 1 - tail]))
    length = float(_length(trained_N2.sum(axis=0)))
    difference = length - float(_length(base_N2.sum(axis=0)))
    verdict: Literal["better", "not-better", "cannot-tell"] = "cannot-tell"
    if len(both) >= LEAST_PROMPTS:
        if high <= spec.least_gain or length < spec.least_length:
            verdict = "not-better"
        elif low > 0 and difference >= spec.least_gain:
            verdict = "better"
    return Verdict(verdict, difference, low, high, len(both))


def length_interval(histograms: dict[str, list[int]], confidence: float) -> tuple[float, float]:
    """Bootstrap interval of one drafter's acceptance length, over prompts."""
    if not histograms:
        return 1.0, 1.0
    sums_N2 = _sums(histograms, sorted(histograms))
    picks_RN = np.random.default_rng(SEED).integers(len(sums_N2), size=(RESAMPLES, len(sums_N2)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(_length(sums_N2[picks_RN].sum(axis=1)), [tail, 1 - tail])
    return float(low), float(high)


def _sums(histograms: dict[str, list[int]], ids: list[str]) -> NDArray[np.int64]:
    return np.array([[sum(j * n for j, n in enumerate(histograms[i])), sum(histograms[i])] for i in ids])


def _length(sums: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 + accepted / steps along the last axis; a prompt answered in one step has none to count."""
    return 1.0 + sums[..., 0] / np.maximum(sums[..., 1], 1)
