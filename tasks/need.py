"""What is still needed of what lies under a data root, decided backwards from the recipes and the recent runs."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tasks.errors import HeroRunError
from tasks.recipe import Recipe, identity_of
from tasks.stages import (
    answers_stage,
    drafter_stage,
    evaluation_stage,
    resolved_windows,
    responses_stage,
    states_stage,
    training_stage,
)
from tasks.system.inventory import Inventory, RunRecord, StageFolder
from tasks.system.manifest import Stage, recorded
from tasks.system.run import Product, Run, product_of
from tasks.system.target import target_stage
from tasks.windows import chain

KEPT_DAYS = 30
"""A run with changed fields makes what no recipe names; what a run of the last days used is kept all the same."""


@dataclass
class Reach:
    """The folders that a recipe leads to, as far as what is on disk lets it be followed."""

    recipe: str
    folders: set[Path] = field(default_factory=set)
    trainings: dict[Path, set[Path]] = field(default_factory=dict)
    """Of each folder of states, the trainings that read it."""
    unknown: str = ""
    """Why it could not be followed to its end."""


@dataclass(frozen=True)
class Needs:
    """Who needs what."""

    who: dict[Path, list[str]]
    """Folder to the recipes and runs that need it; a folder that is not here can go."""
    waiting: dict[Path, str]
    """Folders of states to why they are not used up yet; empty text: they are."""
    unknown: dict[str, str]
    """Recipes that could not be followed, with the reason."""


def needs(inventory: Inventory, recipes: Sequence[Recipe], keep_runs: int | None = None) -> Needs:
    """Who needs what is on disk.

    Args:
        inventory: What is on disk.
        recipes: All recipes that may be run with this data root.
        keep_runs: What this many of the newest runs used is kept; None: of the last ``KEPT_DAYS`` days.
    """
    reaches = [reach(recipe, inventory) for recipe in recipes]
    runs = kept_runs(inventory, keep_runs)
    who: dict[Path, list[str]] = {}
    for found in reaches:
        for folder in found.folders:
            who.setdefault(folder, []).append(f"recipe {found.recipe}")
    for stage in inventory.stages:
        if used_by := [run.name for run in runs if stage.name in run.folders]:
            who.setdefault(stage.folder, []).append(f"run {used_by[0]}")
    for stage in inventory.stages:  # a set of answers can grow only from its journal
        if stage.kind == "responses" and stage.folder in who and stage.manifest is not None:
            journal = inventory.data_root / "answers" / str(stage.manifest.identity.get("answers"))
            who.setdefault(journal, []).append(f"the set of answers {stage.digest}")
    waiting = {
        stage.folder: _waiting(stage, inventory, reaches, runs) for stage in inventory.stages if stage.kind == "states"
    }
    return Needs(who, waiting, {found.recipe: found.unknown for found in reaches if found.unknown})


def kept_runs(inventory: Inventory, keep_runs: int | None) -> list[RunRecord]:
    """The runs whose products are kept although no recipe may need them, newest first."""
    if keep_runs is not None:
        return inventory.runs[:keep_runs]
    return [run for run in inventory.runs if time.time() - run.seconds < KEPT_DAYS * 86_400]


def reach(recipe: Recipe, inventory: Inventory) -> Reach:
    """Follow a recipe through what is on disk.

    A link of the chain that cannot be computed, because a prompt file or an upstream product is gone, is followed
    by the manifests instead: whatever names the product before it counts.
    """
    found = Reach(recipe.name)
    run = Run(recipe=recipe, id="", name="", data_root=inventory.data_root, engine_python=Path())
    try:
        if recipe.target.source.kind != "folder":
            found.folders.add(target_stage(run).folder)
        answers, base = answers_stage(run), drafter_stage(run)
    except (OSError, ValueError, KeyError, HeroRunError) as error:
        found.unknown = str(error)
        return found
    found.folders |= {answers.folder, base.folder}
    drafter = _product(base.folder)
    listed = _listed(inventory, "responses", answers=answers.digest, prompts=identity_of(recipe.prompts))
    for folder in _one_or(partial(responses_stage, run), listed):
        found.folders.add(folder)
        if responses := _product(folder):
            _follow_states(found, inventory, run, responses, drafter)
    return found


def _follow_states(found: Reach, inventory: Inventory, run: Run, responses: Product, drafter: Product | None) -> None:
    if drafter and resolved_windows(run, responses, drafter) > 1:
        _follow_windows(found, inventory, run, responses, drafter)
        return
    listed = _listed(inventory, "states", responses=responses.content_sha256)
    for folder in _one_or(partial(states_stage, run, responses, drafter) if drafter else None, listed):
        found.folders.add(folder)
        if states := _product(folder):
            _follow_training(found, inventory, run, folder, states, drafter)


def _follow_windows(found: Reach, inventory: Inventory, run: Run, responses: Product, drafter: Product) -> None:
    links = chain(run, responses, drafter, lambda _, stage: recorded(stage.folder))
    for link in links:
        found.folders.add(link.states.folder)
        if link.training is not None:
            found.folders.add(link.training.folder)
            found.trainings.setdefault(link.states.folder, set()).add(link.training.folder)
    last = links[-1].training
    if last is not None and (trained := _product(last.folder)):
        evaluations = _listed(inventory, "evaluations", trained=trained.content_sha256)
        found.folders |= _one_or(partial(evaluation_stage, run, trained), evaluations)


def _follow_training(
    found: Reach, inventory: Inventory, run: Run, states_folder: Path, states: Product, drafter: Product | None
) -> None:
    listed = _listed(inventory, "trained", states=states.content_sha256)
    for folder in _one_or(partial(training_stage, run, states, drafter) if drafter else None, listed):
        found.folders.add(folder)
        found.trainings.setdefault(states_folder, set()).add(folder)
        if trained := _product(folder):
            evaluations = _listed(inventory, "evaluations", trained=trained.content_sha256)
            found.folders |= _one_or(partial(evaluation_stage, run, trained), evaluations)


def _one_or(stage: Callable[[], Stage] | None, listed: set[Path]) -> set[Path]:
    """The folder of a stage that can be computed, else those that the manifests list."""
    try:
        return {stage().folder} if stage else listed
    except (OSError, ValueError, KeyError, HeroRunError):
        return listed


def _listed(inventory: Inventory, kind: str, **identity: object) -> set[Path]:
    """The folders of a kind whose manifests have this identity, among other things."""
    return {
        stage.folder
        for stage in inventory.stages
        if stage.kind == kind
        and stage.manifest is not None
        and all(stage.manifest.identity.get(name) == value for name, value in identity.items())
    }


def _product(folder: Path) -> Product | None:
    """What was finished in a folder once: damaged or used-up products lead on as well as whole ones."""
    manifest = recorded(folder)
    return None if manifest is None else product_of(Stage(manifest.stage, manifest.identity, folder), manifest)


def _waiting(states: StageFolder, inventory: Inventory, reaches: Iterable[Reach], runs: list[RunRecord]) -> str:
    """Why states must stay: every training that reads them, of a recipe or a kept run, has to be finished."""
    if states.manifest is None or states.state not in ("complete", "consumed"):
        return f"they are {states.state_text}"
    trained = [stage for stage in inventory.stages if stage.kind == "trained" and stage.state == "complete"]
    finished = {stage.name for stage in trained}
    if not any(
        stage.manifest and stage.manifest.identity.get("states") == states.manifest.content_sha256 for stage in trained
    ):
        return "no finished training has read them"
    for found in reaches:
        for folder in found.trainings.get(states.folder, set()):
            if f"trained/{folder.name}" not in finished:
                return f"recipe {found.recipe} trains on them, and its trained/{folder.name} is not finished"
    users = [run for run in runs if states.name in run.folders]
    for run in users:
        trainings = {name for name in run.folders if name.startswith("trained/")}
        if unfinished := sorted(trainings - finished):
            return f"run {run.name} trains on them, and its {unfinished[0]} is not finished"
        if not trainings and run is users[0]:
            return f"run {run.name}, the newest that uses them, has not come to its training"
    return ""
