import itertools
import re
from collections import Counter

import pytest

from flows.demo_prompts import DEMO_PROMPTS_PATH, KINDS, demo_file_text, demo_rows
from tasks import recipe
from tasks.system.prompts import load_prompts


def prompts() -> list[str]:
    return [row["conversations"][0]["value"] for row in demo_rows()]


def test_committed_file_is_what_the_generator_makes():
    assert DEMO_PROMPTS_PATH.read_text(encoding="utf-8") == demo_file_text()


def test_there_are_at_least_1200_distinct_prompts():
    assert len(set(prompts())) >= 1200


def test_there_are_no_duplicates_with_numbers_masked():
    masked = Counter(re.sub(r"\d+", "#", prompt) for prompt in prompts())
    assert [prompt for prompt, count in masked.items() if count > 1] == []


def test_no_two_prompts_of_more_than_a_line_share_nearly_all_words():
    bags = [frozenset(re.findall(r"\w+", prompt.lower())) for prompt in prompts()]
    long_bags = [bag for bag in bags if len(bag) >= 16]
    assert max(len(a & b) / len(a | b) for a, b in itertools.combinations(long_bags, 2)) <= 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_at_least_30_prompts(kind):
    assert sum(row["source"] == f"hero-demo/{kind}" for row in demo_rows()) >= 30


def test_no_placeholder_is_left():
    assert [prompt for prompt in prompts() if re.search(r"\{\w*\}|\\n", prompt)] == []


def test_no_prompt_is_longer_than_600_characters():
    assert max(map(len, prompts())) <= 600


def test_loader_finds_every_row_usable():
    spec = recipe.Prompts(source=str(DEMO_PROMPTS_PATH), training_samples=780)
    sets = load_prompts(spec, DEMO_PROMPTS_PATH)
    assert (len(sets.training), sets.skipped) == (780, {})


def test_at_least_12_kinds_are_among_the_80_evaluation_prompts():
    sets = load_prompts(recipe.Prompts(source=str(DEMO_PROMPTS_PATH), training_samples=780), DEMO_PROMPTS_PATH)
    assert len({prompt.source for prompt in sets.evaluation}) >= 12
