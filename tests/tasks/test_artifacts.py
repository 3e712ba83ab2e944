"""What people read while a stage runs."""

import pytest

from tasks.artifacts import describe, readable_number, readable_seconds
from tasks.system.engine_child import Progress


def test_a_report_has_share_rate_and_eta():
    progress = Progress("answering", 300, 500, "prompts", {"tokens_per_second": 641.7})
    text = "answering: 300 of 500 prompts (60 %), 2 prompts/s, ETA 1 min 40 s; tokens per second 642"
    assert describe(progress, gained=200, seconds=100) == text


def test_the_rate_counts_only_what_this_run_did():
    resumed = Progress("extraction", 90_000, 100_000, "tokens", {})
    assert describe(resumed, gained=10_000, seconds=10) == (
        "extraction: 90,000 of 100,000 tokens (90 %), 1,000 tokens/s, ETA 10 s"
    )


def test_a_phase_without_an_amount_is_its_name():
    assert describe(Progress("loading the target", 0, 0, "samples", {}), 0, 30) == "loading the target"


def test_a_figure_that_is_not_known_yet_is_left_out():
    progress = Progress("training", 1, 10, "steps", {"loss": 2.5, "acceptance_length": None})
    assert describe(progress, 0, 0) == "training: 1 of 10 steps (10 %); loss 2.5"


@pytest.mark.parametrize(("value", "text"), [(0.7234, "0.723"), (12.34, "12.3"), (1111.6, "1,112")])
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert readable_number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")])
def test_seconds_are_readable(seconds, text):
    assert readable_seconds(seconds) == text
