"""Simulated acceptance."""

import pytest
import torch

from tasks.eagle3.metrics import acceptance_length, conditional_acceptances, visited_positions
from tasks.eagle3.unroll import plan_unroll
from tasks.eagle3.validation import by_position, highest, served_acceptances


def test_the_length_is_one_plus_products_of_conditional_acceptances():
    assert acceptance_length([(8, 10), (4, 8), (1, 4)]) == pytest.approx(1 + 0.8 + 0.4 + 0.1)


def test_a_step_that_was_never_tried_adds_nothing():
    assert acceptance_length([(0, 10), (0, 0)]) == 1.0


def test_a_hit_after_a_miss_does_not_count():
    hits = torch.tensor([[True, False, True], [True, True, False]])
    assert conditional_acceptances(hits, torch.ones_like(hits)) == [(2, 3), (1, 2)]


def test_drafting_goes_on_behind_what_was_accepted():
    """Position 3 accepts two, so the next verification drafts at 6; 2 reads a prompt token."""
    hits = torch.tensor([[True, True, True, True, False, True], [True, True, False, True, False, True]])
    generated = torch.tensor([False] + [True] * 5)
    visited = visited_positions(hits, [2, 3, 4, 5, 6, 7], generated)
    assert visited.tolist() == [False, True, False, False, True, True]


def test_the_first_answer_token_is_never_drafted():
    """It comes from the prefill: of the answers x[2], x[3], x[4] a server drafts the last two."""
    plan = plan_unroll(torch.tensor([False] * 2 + [True] * 3), torch.zeros(5, dtype=torch.long), 2)
    all_hit = torch.ones_like(plan.counted_KS)
    assert served_acceptances(all_hit, plan, torch.tensor([False] * 2 + [True] * 3)) == [(1, 1), (1, 1)]


def test_hits_are_arranged_by_the_position_that_drafts():
    """Answers are x[3] and x[4]: position 1 drafts both, position 0 only x[3], at step 1."""
    plan = plan_unroll(torch.tensor([False] * 3 + [True] * 2), torch.zeros(5, dtype=torch.long), 2)
    hits_by_token = torch.tensor([[True, False], [False, True]])
    assert plan.rows_N.tolist() == [0, 1, 2]
    assert by_position(hits_by_token, plan).tolist() == [[False, True, False], [False, True, False]]


def test_the_highest_logit_is_found_across_blocks():
    states, head = torch.randn(100, 8), torch.randn(200_000, 8)
    assert torch.equal(highest(states, head), (states @ head.T).argmax(-1))
