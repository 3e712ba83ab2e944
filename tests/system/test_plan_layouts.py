"""The layout that is chosen, and why: the reference run's figures, computed by hand."""

import pytest

from tasks.system.plan.layouts import peak_bytes
from tasks.system.plan.needs import OnDisk
from tasks.system.plan.tokens import Tokens
from tasks.system.plan.whole import make_plan
from tests.system.plans import GB, TB, ground, kimi, plan, tokens_of


def test_the_reference_run_has_94_million_tokens():
    tokens = tokens_of(kimi(), 25_000)
    # 25,000 x 2,986 and 25,000 x 782.
    assert (tokens.answer_tokens, tokens.prompt_tokens, tokens.total) == (74_650_000, 19_550_000, 94_200_000)


def test_the_recipe_itself_asks_25_000_prompts():
    prompts = kimi().prompts
    assert prompts.training_samples + prompts.validation_samples == 25_000


@pytest.mark.parametrize(("layout", "terabytes"), [("bf16", 5.40), ("fp8", 2.70), ("fp8+topk", 2.06)])
def test_the_reference_runs_states_take_the_published_bytes(layout, terabytes):
    found = {entry.layout: entry.store_bytes for entry in plan().layouts}
    assert found[layout] / TB == pytest.approx(terabytes, abs=0.005)


def test_on_the_reference_box_the_top_logits_are_stored():
    choice = plan(free=2.8 * TB).choice
    assert (choice.layout, choice.windows) == ("fp8+topk", 1)


def test_it_says_why_neither_of_the_more_faithful_layouts_is_taken():
    reason = plan(free=2.8 * TB).choice.reason
    # 2,800 GB less 2,702.1 GB of states, 2.07 of answers, 5.03 of the drafter and 50.3 of its training.
    assert "bf16 whole, 5.40 TB, is 2.66 TB more than there is" in reason
    assert "fp8 whole, 2.70 TB, would leave 40.5 GB, less than the reserve of 140 GB" in reason


@pytest.mark.parametrize(
    ("free", "layout"), [(6.0 * TB, "bf16"), (3.0 * TB, "fp8"), (2.8 * TB, "fp8+topk"), (2.3 * TB, "fp8+topk")]
)
def test_the_most_faithful_layout_that_fits_is_taken(free, layout):
    assert (plan(free=free).choice.layout, plan(free=free).fits) == (layout, True)


def test_when_nothing_fits_whole_the_fewest_windows_are_taken_and_then_the_most_faithful():
    # 1.84 TB of room: bf16 three windows, fp8 two, fp8+topk two.
    choice = plan(free=2.0 * TB).choice
    assert (choice.layout, choice.windows) == ("fp8", 2)
    assert "no layout fits whole" in choice.reason


def test_a_layout_that_the_recipe_names_is_not_overruled():
    choice = plan(recipe=kimi(extraction={"layout": "bf16"})).choice
    assert (choice.layout, choice.windows) == ("bf16", 3)
    assert choice.reason.startswith("the recipe asks for it; bf16 whole, 5.40 TB, is")


def test_where_not_even_many_windows_fit_it_says_so():
    found = plan(free=80 * GB)
    assert (found.choice.windows, found.fits) == (0, False)
    assert "nothing fits, not even in 64 windows" in found.choice.reason


def test_a_window_has_its_share_of_the_training_samples_and_all_held_out_ones():
    tokens = Tokens(1000, 100, 0, 0, True, "")
    # 900 training samples in 4 windows of 225, and 100 held out: 325 of 1000.
    assert peak_bytes(1_000_000, tokens, 4) == 325_000


def test_the_rest_of_a_division_makes_a_window_larger():
    assert peak_bytes(1_000, Tokens(1000, 0, 0, 0, True, ""), 3) == 334


def test_what_is_begun_in_a_layout_counts_for_that_layout_alone():
    begun = OnDisk(target_is_ready=True, states_bytes={"bf16": round(3 * TB)})
    windows = {entry.layout: entry.windows for entry in plan(there=begun).layouts}
    # 5.40 TB less 3 TB that are there: 2.40 of 2.60 TB of room.
    assert windows == {"bf16": 1, "fp8": 2, "fp8+topk": 1}


def test_the_largest_number_of_samples_fits_and_one_more_does_not():
    largest = {entry.layout: entry.largest_samples for entry in plan().layouts}["fp8"]
    recipe = kimi(extraction={"layout": "fp8"})
    assert (plan(largest, recipe=recipe).fits, plan(largest + 1, recipe=recipe).fits) == (True, False)


def test_answers_half_as_long_again_no_longer_fit_whole():
    assert (plan().fits, plan(longer=1.5).fits) == (True, False)


def test_a_machine_of_which_nothing_is_known_gets_the_most_faithful_layout():
    found = make_plan(ground(kimi(), None), tokens_of(kimi(), 25_000), "auto")
    assert (found.choice.layout, found.choice.reason) == ("bf16", "nothing is known of the free space")
