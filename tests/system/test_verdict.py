"""The paired bootstrap against arithmetic done by hand and by the plain definition."""

import random

import pytest

from tasks.recipe import Evaluation
from tasks.system.verdict import judge, length_interval


def drafter(mean_accepted: float, prompts: int, seed: int) -> dict[str, list[int]]:
    """Histograms of a drafter that accepts each of three tokens with the same chance."""
    source = random.Random(seed)
    histograms = {}
    for prompt in range(prompts):
        histogram = [0, 0, 0, 0]
        for _ in range(30):
            accepted = 0
            while accepted < 3 and source.random() < mean_accepted:
                accepted += 1
            histogram[accepted] += 1
        histograms[str(prompt)] = histogram
    return histograms


def test_a_clearly_better_drafter_is_better():
    assert judge(drafter(0.2, 60, 1), drafter(0.5, 60, 2), Evaluation()).verdict == "better"


def test_a_clearly_worse_drafter_is_not_better():
    assert judge(drafter(0.5, 60, 1), drafter(0.2, 60, 2), Evaluation()).verdict == "not-better"


@pytest.mark.fault("too-little-data")
def test_the_same_drafter_is_not_better():
    same = drafter(0.4, 60, 1)
    assert judge(same, same, Evaluation()).verdict == "not-better"


def test_chance_differences_cannot_be_told():
    assert judge(drafter(0.4, 20, 1), drafter(0.4, 20, 2), Evaluation()).verdict == "cannot-tell"


@pytest.mark.fault("too-little-data")
def test_a_gain_that_gives_too_few_tokens_a_step_is_not_better():
    assert judge(drafter(0.0, 60, 1), drafter(0.1, 60, 2), Evaluation()).verdict == "not-better"


def test_a_gain_below_the_least_that_counts_is_not_better():
    base = {str(i): [10, 10, 10, 10] for i in range(60)}
    trained = base | {"0": [9, 11, 10, 10]}
    assert judge(base, trained, Evaluation(least_gain=0.02)).verdict == "not-better"


def test_few_prompts_cannot_be_told():
    assert judge(drafter(0.0, 19, 1), drafter(0.9, 19, 2), Evaluation()).verdict == "cannot-tell"


def test_the_difference_is_that_of_one_plus_accepted_over_drafts():
    base = {"a": [2, 1, 0, 0], "b": [1, 0, 0, 0]}
    trained = {"a": [1, 0, 1, 0], "b": [0, 0, 0, 1]}
    assert judge(base, trained, Evaluation()).difference == pytest.approx((1 + 5 / 3) - (1 + 1 / 4))


def test_only_prompts_that_both_answered_count():
    verdict = judge({"a": [1, 0], "x": [9, 0]}, {"a": [0, 1], "y": [0, 9]}, Evaluation())
    assert (verdict.prompts, verdict.difference) == (1, 1.0)


def test_no_common_prompt_cannot_be_told():
    assert judge({}, {"a": [0, 1]}, Evaluation()).verdict == "cannot-tell"


def test_the_interval_equals_a_plain_bootstrap():
    histograms = drafter(0.4, 40, 3)
    source = random.Random(0)
    sums = [(sum(j * n for j, n in enumerate(h)), sum(h)) for h in histograms.values()]
    lengths = []
    for _ in range(4000):
        picked = source.choices(sums, k=len(sums))
        lengths.append(1 + sum(a for a, _ in picked) / sum(d for _, d in picked))
    lengths.sort()
    assert length_interval(histograms, 0.95) == pytest.approx((lengths[100], lengths[3899]), abs=0.01)
