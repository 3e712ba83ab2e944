"""Which layout of the hidden states fits, whole or in windows: the most faithful one is taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.hidden_states.layout import LAYOUTS, Layout
from tasks.recipe import ModelFacts, Recipe
from tasks.system.plan.needs import OnDisk, answers_bytes, hand_over_bytes, store_bytes, token_bytes
from tasks.system.plan.tokens import Tokens
from tasks.system.plan.units import decimal_bytes
from tasks.system.plan.volumes import Volume

MOST_WINDOWS = 64
"""Every window costs a model load."""


@dataclass(frozen=True)
class LayoutPlan:
    """One layout of all samples against the room for it."""

    layout: Layout
    bytes_per_token: int
    store_bytes: int
    """Whole."""
    windows: int
    """Slices that it has to be cut into; 1: it fits whole; 0: not even in the most windows."""
    peak_bytes: int
    """On disk at once, in that many windows."""
    largest_samples: int
    """Most samples whose states fit whole, answers included."""

    @property
    def fits_whole(self) -> bool:
        """Whether it needs no windows."""
        return self.windows == 1


@dataclass(frozen=True)
class Choice:
    """The layout that is taken, and why."""

    layout: Layout
    windows: int
    """0: nothing fits."""
    reason: str


def plan_layouts(recipe: Recipe, facts: ModelFacts, tokens: Tokens, there: OnDisk, room: int) -> list[LayoutPlan]:
    """Every layout, the most faithful first.

    Args:
        recipe: The recipe.
        facts: Sizes of the target.
        tokens: Of all samples.
        there: What need not be written again.
        room: Bytes for states: free space less the reserve and everything else that is going to be written.
    """
    return [_plan_layout(recipe, facts, tokens, there, room, layout) for layout in LAYOUTS]


def _plan_layout(
    recipe: Recipe, facts: ModelFacts, tokens: Tokens, there: OnDisk, room: int, layout: Layout
) -> LayoutPlan:
    whole = store_bytes(recipe, facts, layout, tokens.total, tokens.samples)
    hand_over = hand_over_bytes(recipe, facts)
    room_with_there = room + there.states_bytes.get(layout, 0)
    if "extraction" in there.finished:
        windows = 1
    else:
        least = (n for n in range(1, MOST_WINDOWS + 1) if _at_once(whole, hand_over, tokens, n) <= room_with_there)
        windows = next(least, 0)
    answers = answers_bytes(tokens.total) if "inference" not in there.finished else 0
    a_sample = (whole + answers) / tokens.samples
    return LayoutPlan(
        layout=layout,
        bytes_per_token=token_bytes(recipe, facts, layout),
        store_bytes=whole,
        windows=windows,
        peak_bytes=peak_bytes(whole, tokens, windows or MOST_WINDOWS),
        largest_samples=max(0, int((room_with_there + answers) / a_sample)),
    )


def _at_once(whole: int, hand_over: int, tokens: Tokens, windows: int) -> int:
    return peak_bytes(whole, tokens, windows) + (hand_over if windows > 1 else 0)


def peak_bytes(whole: int, tokens: Tokens, windows: int) -> int:
    """Bytes of states on disk at once: the largest window of training samples, and the held-out ones all the time."""
    training = tokens.samples - tokens.validation_samples
    at_once = tokens.validation_samples + -(-training // windows)
    return -(-whole * at_once // tokens.samples)


def choose(
    asked: Literal["auto"] | Layout, plans: Sequence[LayoutPlan], volume: Volume | None, room: int, windows: int
) -> Choice:
    """The layout to take.

    Args:
        asked: The recipe's layout; ``auto`` takes the most faithful one that fits whole, else the one that
            needs the fewest windows.
        plans: The layouts, the most faithful first.
        volume: Where states are written; None where nothing is known of it.
        room: As in ``plan_layouts``.
        windows: 1: none are wanted; more: so many are; 0: as few as fit.
    """
    if volume is None:
        layout = plans[0].layout if asked == "auto" else asked
        return Choice(layout, max(1, windows), "nothing is known of the free space")
    if windows > 1:
        in_them = [plan for plan in plans if asked in ("auto", plan.layout) and 0 < plan.windows <= windows]
        layout = in_them[0].layout if in_them else plans[-1].layout if asked == "auto" else asked
        fits = "fits" if in_them else "does not fit"
        return Choice(layout, windows, f"the recipe asks for {windows} windows, and {layout} in them {fits}")
    if asked != "auto":
        plan = next(plan for plan in plans if plan.layout == asked)
        any_whole = any(plan.fits_whole for plan in plans)
        so = f"; nothing fits whole, so it takes {plan.windows} windows" if windows == 0 and not any_whole else ""
        return Choice(plan.layout, plan.windows, f"the recipe asks for it; {_fit(plan, volume, room)}{so}")
    whole = [plan for plan in plans if plan.fits_whole]
    if whole:
        taken = whole[0]
        worse = [_fit(plan, volume, room) for plan in plans[: plans.index(taken)]]
        why = (
            "the most faithful layout there is fits whole" if not worse else "the most faithful layout that fits whole"
        )
        return Choice(taken.layout, 1, "; ".join([f"{why}, {_fit(taken, volume, room)}", *worse]))
    in_windows = [plan for plan in plans if plan.windows]
    if in_windows:
        taken = min(in_windows, key=lambda plan: plan.windows)
        reasons = "; ".join(_fit(plan, volume, room) for plan in plans)
        return Choice(
            taken.layout, taken.windows, f"no layout fits whole, this one needs the fewest windows; {reasons}"
        )
    smallest = plans[-1]
    return Choice(
        smallest.layout, 0, f"nothing fits, not even in {MOST_WINDOWS} windows; {_fit(smallest, volume, room)}"
    )


def _fit(plan: LayoutPlan, volume: Volume, room: int) -> str:
    left = room + volume.reserve_bytes - plan.store_bytes
    if plan.fits_whole:
        return f"{plan.layout} whole leaves {decimal_bytes(left)} of {decimal_bytes(volume.free_bytes)} free"
    how = f"{plan.layout} whole, {decimal_bytes(plan.store_bytes)},"
    if left < 0:
        return f"{how} is {decimal_bytes(-left)} more than there is"
    return f"{how} would leave {decimal_bytes(left)}, less than the reserve of {decimal_bytes(volume.reserve_bytes)}"
