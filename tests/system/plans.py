"""Plans of the reference run, and of small models, on volumes that are only described."""

from pathlib import Path
from typing import Any

from flows.recipes import named
from tasks.recipe import Recipe
from tasks.system.plan.hours import rates_of
from tasks.system.plan.needs import OnDisk
from tasks.system.plan.tokens import Tokens, expected_tokens, stated_lengths
from tasks.system.plan.volumes import Space, described_space
from tasks.system.plan.whole import Ground, Plan, make_plan

TB, GB = 10**12, 10**9
SERVED = OnDisk(target_is_ready=True)
"""A machine that serves the target, and holds nothing else of the run."""


def kimi(**changes: Any) -> Recipe:
    """The reference run's recipe."""
    return named("kimi-k25", changes)


def tokens_of(recipe: Recipe, samples: int, longer: float = 1.0) -> Tokens:
    """By the recipe's own lengths."""
    return expected_tokens(recipe, samples, stated_lengths(recipe), longer)


def ground(recipe: Recipe, space: Space | None, there: OnDisk = SERVED, **changes: Any) -> Ground:
    """What a plan stands on, with the recipe's snapshot and rates."""
    return Ground(
        recipe=recipe,
        facts=recipe.target.snapshot,
        facts_basis="the snapshot",
        data_root=Path("/data/hero-run"),
        space=space,
        there=there,
        rates=rates_of(recipe.hardware, {}),
        **changes,
    )


def plan(
    samples: int = 25_000,
    free: float = 2.8 * TB,
    recipe: Recipe | None = None,
    there: OnDisk = SERVED,
    longer: float = 1.0,
    **changes: Any,
) -> Plan:
    """A plan of so many samples in so much free space."""
    recipe = recipe or kimi()
    space = described_space(Path("/data"), round(free), recipe.reserve_share, "given")
    return make_plan(
        ground(recipe, space, there, **changes), tokens_of(recipe, samples, longer), recipe.extraction.layout
    )
