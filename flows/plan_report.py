"""All that ``hero-run plan`` tells, gathered: a plan for each number of samples, and the questions that follow."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from flows.recipes import named
from tasks.errors import RecipeError
from tasks.planning import absent_root, cache_folder, ground_of, known_on_disk, layout_so_far, run_tokens
from tasks.recipe import Recipe, changed
from tasks.stages import answers_stage
from tasks.system.plan.hours import StageHours, costs_dollars
from tasks.system.plan.memory import Memory, advice, plan_memory
from tasks.system.plan.model import snapshot_differences
from tasks.system.plan.nights import InNights, Nights, in_nights
from tasks.system.plan.tokens import MeanLengths, expected_tokens, measured_lengths, stated_lengths
from tasks.system.plan.volumes import Space, described_space
from tasks.system.plan.whole import Ground, Plan, make_plan
from tasks.system.run import Run
from tasks.system.target import target_folder

LONGER = (1.5, 2.0)
"""Times the mean answer length that the plan is also made for."""


@dataclass(frozen=True)
class Site:
    """The machine that is planned for, as far as this machine can tell."""

    data_root: Path
    is_here: bool
    """The data root is, or would be, on this machine."""
    space: Space | None


@dataclass(frozen=True)
class Rented:
    """The same samples on a rented machine."""

    recipe: Recipe
    plan: Plan
    costs_dollars: list[float]


@dataclass(frozen=True)
class TrainingOnAll:
    """Training on all cards instead of one."""

    gpus: int
    one_seconds: float
    fastest_seconds: float
    slowest_seconds: float


@dataclass(frozen=True)
class PlanReport:
    """Everything about one recipe."""

    recipe: Recipe
    site: Site
    ground: Ground
    lengths: MeanLengths
    plans: list[Plan]
    """One for each number of samples."""
    own: Plan
    """The recipe's own number of samples."""
    longer: list[tuple[float, Plan]]
    """The recipe's own number, were the answers longer."""
    memory: Memory | None
    rented: Rented | None
    training_on_all: TrainingOnAll | None
    room_for_copy_bytes: int | None
    """What is left for one more copy of the weights; None where no free space is known."""
    warnings: list[str]
    nights: Nights | None = None
    """Between which times there may be work, where that was asked for."""

    def in_nights(self, plan: Plan) -> InNights | None:
        """How many nights a plan takes; None where none were asked for, or they are too short."""
        if self.nights is None:
            return None
        return in_nights(plan.hours, self.ground.rates["load"].value, self.nights)


def find_site(recipe: Recipe, asked_root: str | None, free_bytes: int | None) -> Site:
    """Where the run would write: looked at if it is on this machine, described if not, or on demand.

    Args:
        recipe: The recipe.
        asked_root: The user's ``--data-root``: on this machine, made or not.
        free_bytes: The user's ``--free``.
    """
    root = Path(recipe.data_root).expanduser()
    is_here = asked_root is not None or not root.is_absolute() or root.exists() or root.parent.is_dir()
    root = root.absolute()
    if free_bytes is not None:
        return Site(root, is_here, described_space(root, free_bytes, recipe.reserve_share, "given with --free"))
    if is_here:
        return Site(root, True, Space(recipe.reserve_share))
    if known := recipe.hardware.free_bytes:
        word = "assumed" if "free_bytes" in recipe.hardware.assumed else "stated"
        basis = f"{word} in the recipe"
        return Site(root, False, described_space(root, known, recipe.reserve_share, basis))
    return Site(root, False, None)


def report_on(recipe: Recipe, site: Site, counts: list[int], nights: Nights | None = None) -> PlanReport:
    """Plan a recipe for several numbers of samples, for nights if any are given.

    Raises:
        RecipeError: A number of samples is not more than the held-out ones.
        BadInput: The checkpoint's config is unreadable.
    """
    run = _run(recipe, site)
    lengths = measured_lengths(site.data_root, answers_stage(run).digest) or stated_lengths(recipe)
    own = _plan(recipe, site)
    ground = _ground(run, site)
    plans = [_plan(_with_samples(recipe, count), site) for count in counts]
    longer = [
        (times, make_plan(ground, expected_tokens(recipe, own.tokens.samples, lengths, times), layout_so_far(run)))
        for times in LONGER
    ]
    # Of somebody else's server nobody knows the arguments.
    memory = None if recipe.server.endpoint else plan_memory(recipe, ground.facts, own.tokens)
    room = None
    if own.states_volume is not None:
        on_it = [group.need_bytes for group in own.volumes if group.volume.device == own.states_volume.device]
        room = own.states_volume.usable_bytes - sum(on_it)
    warnings = snapshot_differences(recipe, target_folder(run)) + (advice(memory) if memory else [])
    return PlanReport(
        recipe=recipe,
        site=site,
        ground=ground,
        lengths=lengths,
        plans=plans,
        own=own,
        longer=longer,
        memory=memory,
        rented=_rented(recipe, own.tokens.samples),
        training_on_all=_training_on_all(recipe, own.hours),
        room_for_copy_bytes=room,
        warnings=warnings + _length_warnings(own, longer, lengths),
        nights=nights,
    )


def _run(recipe: Recipe, site: Site) -> Run:
    return Run(recipe=recipe, id="", name="plan", data_root=site.data_root, engine_python=Path())


def _ground(run: Run, site: Site) -> Ground:
    there = known_on_disk(run) if site.is_here else absent_root(run.recipe)
    looks = site.space is not None and site.space.described is None
    return ground_of(run, site.space, there, cache_folder() if looks else None)


def _plan(recipe: Recipe, site: Site) -> Plan:
    run = _run(recipe, site)
    return make_plan(_ground(run, site), run_tokens(run), layout_so_far(run))


def _with_samples(recipe: Recipe, samples: int) -> Recipe:
    held_out = recipe.prompts.validation_samples
    if samples <= held_out:
        raise RecipeError(
            f"--samples counts all answered prompts, the {held_out} held-out ones included, so it must be more than "
            f"{held_out}; found {samples}."
        )
    return changed(recipe, {"prompts": {"training_samples": samples - held_out}})


def _rented(recipe: Recipe, samples: int) -> Rented | None:
    if not recipe.hardware.rented:
        return None
    other = named(recipe.hardware.rented)
    other = dataclasses.replace(
        recipe, name=other.name, description=other.description, hardware=other.hardware, data_root=other.data_root
    )
    site = Site(Path("/rented"), False, None)
    if free := other.hardware.free_bytes:
        site = dataclasses.replace(site, space=described_space(site.data_root, free, other.reserve_share, "assumed"))
    plan = _plan(_with_samples(other, samples), site)
    return Rented(other, plan, costs_dollars(plan.hours, other.hardware.prices_per_hour_dollars))


def _training_on_all(recipe: Recipe, hours: list[StageHours]) -> TrainingOnAll | None:
    seconds = sum(line.seconds for line in hours if line.stage == "training")
    if not recipe.hardware.training_speedup_all_gpus or not seconds:
        return None
    least, most = min(recipe.hardware.training_speedup_all_gpus), max(recipe.hardware.training_speedup_all_gpus)
    return TrainingOnAll(recipe.hardware.gpus, seconds, seconds / most, seconds / least)


def _length_warnings(own: Plan, longer: list[tuple[float, Plan]], lengths: MeanLengths) -> list[str]:
    """The answers' length is the risk while nobody has measured it and longer ones change what fits."""
    if own.tokens.is_exact:
        return []
    word = "measured" if lengths.is_measured else "only stated"
    for times, plan in longer:
        before, after = (own.choice.layout, own.choice.windows), (plan.choice.layout, plan.choice.windows)
        if before != after:
            return [
                f"the answer length is the risk: its mean, {lengths.answer_tokens:,.0f} tokens, is {word}; at "
                f"{times:g} times that {describe_choice(*before)} becomes {describe_choice(*after)}."
            ]
    return []


def describe_choice(layout: str, windows: int) -> str:
    """A layout and its windows in words."""
    if windows == 0:
        return "nothing that fits"
    return f"{layout} whole" if windows == 1 else f"{layout} in {windows} windows"
