"""The plan of one number of samples: disk, layout, hours, and whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.hidden_states.layout import Layout
from tasks.recipe import ModelFacts, Recipe
from tasks.system.plan.hours import Rate, StageHours, stage_hours, total_seconds
from tasks.system.plan.layouts import Choice, LayoutPlan, choose, peak_bytes, plan_layouts
from tasks.system.plan.needs import STAGES, Need, OnDisk, fixed_needs, hand_over_bytes, largest_file, states_need
from tasks.system.plan.tokens import Tokens
from tasks.system.plan.volumes import Space, Volume, VolumeNeeds, by_volume, file_size_limit, room_bytes


@dataclass(frozen=True)
class Ground:
    """What a plan stands on, the same for every number of samples."""

    recipe: Recipe
    facts: ModelFacts
    facts_basis: str
    data_root: Path
    space: Space | None
    """None: nothing is known of any filesystem."""
    there: OnDisk
    rates: Mapping[str, Rate]
    cache_folder: Path | None = None
    """vLLM's own cache, where it is on this machine."""
    windows: int = 1
    """Slices whose states are captured, trained on and deleted one after the other; 0: as few as fit where nothing
    fits whole."""


@dataclass(frozen=True)
class Plan:
    """What a number of samples needs, takes, and whether it fits."""

    tokens: Tokens
    layouts: list[LayoutPlan]
    choice: Choice
    needs: list[Need]
    hours: list[StageHours]
    volumes: list[VolumeNeeds]
    """Empty where no filesystem is known."""
    states_volume: Volume | None
    too_large_file: str
    """The file that this process may not write, in words; empty: none."""

    @property
    def need_bytes(self) -> int:
        """All stages together."""
        return sum(need.need_bytes for need in self.needs)

    @property
    def fits(self) -> bool:
        """Whether all of it can be written."""
        return all(group.fits for group in self.volumes) and not self.too_large_file

    @property
    def total_seconds(self) -> float:
        """All stages, one after the other."""
        return total_seconds(self.hours)


def make_plan(ground: Ground, tokens: Tokens, layout: Literal["auto"] | Layout) -> Plan:
    """Plan so many samples.

    Args:
        ground: What it stands on.
        tokens: Of all samples.
        layout: The recipe's, or the one that was chosen earlier; ``auto`` chooses.
    """
    recipe, facts, there = ground.recipe, ground.facts, ground.there
    needs = fixed_needs(recipe, facts, tokens, there, ground.data_root, ground.cache_folder)
    states_path = ground.data_root / "states"
    # Where nothing is known of the filesystem there is no reason not to store the most.
    room = room_bytes(states_path, needs, ground.space) if ground.space else 1 << 62
    volume = ground.space.volume_of(states_path) if ground.space else None
    layouts = plan_layouts(recipe, facts, tokens, there, room)
    choice = choose(layout, layouts, volume, room, ground.windows)
    taken = next(plan for plan in layouts if plan.layout == choice.layout)
    # Where another layout would fit whole, people choose between that and windows.
    in_windows = ground.windows > 1 or (ground.windows == 0 and not any(plan.fits_whole for plan in layouts))
    windows = max(1, choice.windows) if in_windows else 1
    at_once = peak_bytes(taken.store_bytes, tokens, windows)
    needs.append(states_need(there, choice.layout, at_once, tokens, windows, ground.data_root))
    if windows > 1 and "training" not in there.finished:
        basis = "the checkpoint that one window hands over to the next"
        needs.append(Need("training", hand_over_bytes(recipe, facts), ground.data_root / "trained", basis))
    needs = sorted((need for need in needs if need.need_bytes), key=lambda need: STAGES.index(need.stage))
    return Plan(
        tokens=tokens,
        layouts=layouts,
        choice=choice,
        needs=needs,
        hours=stage_hours(recipe, tokens, ground.rates, there, max(1, choice.windows)),
        volumes=by_volume(needs, ground.space) if ground.space else [],
        states_volume=volume,
        too_large_file=_too_large_file(ground, tokens),
    )


def _too_large_file(ground: Ground, tokens: Tokens) -> str:
    limit = file_size_limit() if ground.space and ground.space.described is None else None
    name, size = largest_file(ground.recipe, ground.facts, tokens)
    return f"{name} of {size:,} B; this process may write files of {limit:,} B" if limit and size > limit else ""
