"""The plan of a run: what is on disk already, what earlier runs measured, and the layout that is chosen for good."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tasks.errors import HeroRunError, NotEnoughDisk
from tasks.hidden_states.layout import LAYOUTS, Layout
from tasks.hidden_states.windows import Window
from tasks.recipe import Recipe
from tasks.stages import (
    answers_journal,
    answers_stage,
    drafter_stage,
    evaluation_stage,
    prompts_path,
    resolved_windows,
    responses_stage,
    states_stage_in,
)
from tasks.system.manifest import Manifest, Stage, recorded
from tasks.system.plan.choice_record import ChosenLayout, read_choice, record_path, write_choice
from tasks.system.plan.hours import Rate, rates_of
from tasks.system.plan.model import facts_basis, model_facts
from tasks.system.plan.needs import OnDisk
from tasks.system.plan.nights import Nights, in_nights
from tasks.system.plan.refusal import refusal
from tasks.system.plan.tokens import (
    Tokens,
    counted_tokens,
    expected_tokens,
    measured_lengths,
    recipe_samples,
    stated_lengths,
)
from tasks.system.plan.units import readable_hours
from tasks.system.plan.volumes import Space
from tasks.system.plan.whole import Ground, Plan, make_plan
from tasks.system.run import Product, Run, finished, product_of
from tasks.system.target import target_folder, target_identity, target_is_ready
from tasks.system.timings import measured_rates
from tasks.windows import all_windows, chain


def plan_run(run: Run) -> Plan:
    """The plan of what a run has left to do, on the filesystems of this machine.

    Raises:
        BadInput: A checkpoint or the prompt file is not what it must be.
    """
    ground = ground_of(run, Space(run.recipe.reserve_share), on_disk(run), cache_folder())
    return make_plan(ground, run_tokens(run), layout_so_far(run))


def deadline_outlook(run: Run, plan: Plan) -> str:
    """How far a run should come by its deadline, in words; empty for a run that has none that stops it."""
    left_seconds = run.deadline.of_stages.at_seconds - time.time()
    if math.isinf(left_seconds):
        return ""
    spread = in_nights(plan.hours, known_rates(run)["load"].value, Nights("", "", left_seconds))
    left = readable_hours(left_seconds)
    if spread is None:
        return f"the deadline is {left} away, too near for a load of the target and the work that needs it"
    if not spread.broken_off:
        return f"the run should be done in {readable_hours(spread.last_seconds)}; its deadline is {left} away"
    first = spread.broken_off[0]
    share = f"{first.stage} {100 * first.done_share:.0f} %"
    return f"at its deadline, {left} away, the run should have come to {share}; it takes {spread.count} runs as long"


def ground_of(run: Run, space: Space | None, there: OnDisk, cache: Path | None) -> Ground:
    """What every plan of this run stands on."""
    folder = target_folder(run)
    return Ground(
        recipe=run.recipe,
        facts=model_facts(run.recipe, folder),
        facts_basis=facts_basis(run.recipe, folder),
        data_root=run.data_root,
        space=space,
        there=there,
        rates=known_rates(run),
        cache_folder=cache,
        windows=windows_so_far(run),
    )


def cache_folder() -> Path:
    """Where vLLM keeps what it compiles."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return Path(os.environ.get("VLLM_CACHE_ROOT", caches / "vllm"))


def layout_so_far(run: Run) -> Literal["auto"] | Layout:
    """The recipe's layout; if that is left to the planner, the one of a store that is begun."""
    kept = _choice_so_far(run)
    return run.recipe.extraction.layout if kept is None else kept[0]


def windows_so_far(run: Run) -> int:
    """The recipe's windows; if they are left to the planner, those of a store that is begun, else 0."""
    kept = _choice_so_far(run)
    return run.recipe.extraction.windows if kept is None else kept[1]


def _choice_so_far(run: Run) -> tuple[Layout, int] | None:
    extraction = run.recipe.extraction
    if (extraction.layout != "auto" and extraction.windows) or not prompts_path(run).exists():
        return None
    answers, base = responses_stage(run), drafter_stage(run)
    responses, drafter = answers.manifest(), base.manifest()
    if responses is None or drafter is None:
        return None
    return _kept_choice(run, product_of(answers, responses), product_of(base, drafter))


def run_tokens(run: Run) -> Tokens:
    """Tokens of the recipe's samples: counted when they are answered, else by measured or stated means."""
    responses = responses_stage(run).manifest() if prompts_path(run).exists() else None
    if responses is not None:
        return counted_tokens(responses.facts)
    means = measured_lengths(run.data_root, answers_stage(run).digest) or stated_lengths(run.recipe)
    return expected_tokens(run.recipe, recipe_samples(run.recipe), means)


def known_rates(run: Run) -> dict[str, Rate]:
    """Throughputs: measured by earlier runs of the recipe on this data root, else the recipe's own."""
    measured = measured_rates(run.data_root, run.recipe.name)
    answers, target = answers_stage(run).digest, target_identity(run.recipe.target)
    for manifest in _manifests(run.data_root / "responses"):
        if manifest.identity.get("answers") == answers and manifest.facts.get("tokens_per_second"):
            measured["generation"] = manifest.facts["tokens_per_second"]
    for manifest in _manifests(run.data_root / "evaluations"):
        speeds = [arm["tokens_per_second"] for arm in manifest.facts.get("arms", []) if arm.get("tokens_per_second")]
        if manifest.identity.get("target") == target and speeds:
            measured["evaluation"] = len(speeds) / sum(1 / speed for speed in speeds)
    return rates_of(run.recipe.hardware, measured)


def _manifests(folder: Path) -> Iterator[Manifest]:
    """What was finished in the sub-folders, the newest last."""
    entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime) if folder.is_dir() else []
    for entry in entries:
        if (manifest := recorded(entry)) is not None:
            yield manifest


def on_disk(run: Run) -> OnDisk:
    """What need not be made again, as far as what is there can be followed from the recipe.

    Without the prompt file, and without a product upstream, nothing downstream can be told to be this run's.
    """
    done: set[str] = set()
    there: dict[str, int] = {}
    target_ready = target_is_ready(run)
    there["server-load"] = 0 if target_ready else bytes_in(target_folder(run))
    drafter = _look(run, drafter_stage(run), "drafter-download", done, there)
    if not prompts_path(run).exists():
        return OnDisk(finished=frozenset(done), target_is_ready=target_ready, bytes_there=there)
    responses = _look(run, responses_stage(run), "inference", done, there)
    answered = 0 if responses else min(_lines(answers_journal(run)), recipe_samples(run.recipe))
    if responses:
        done.add("server-load")  # the server is for the answers; later loads have lines of their own
    found = OnDisk(frozenset(done), target_ready, there, answered_samples=answered)
    return _look_downstream(run, responses, drafter, found) if responses and drafter else found


def _look(run: Run, stage: Stage, name: str, done: set[str], there: dict[str, int]) -> Product | None:
    if (manifest := finished(run, stage)) is not None:
        done.add(name)
        return product_of(stage, manifest)
    there[name] = bytes_in(stage.folder)
    return None


def _look_downstream(run: Run, responses: Product, drafter: Product, there: OnDisk) -> OnDisk:
    """Of states, window by window, and what follows them."""
    states_bytes: dict[str, int] = {}
    for layout in LAYOUTS:
        states_bytes[layout] = bytes_in(states_stage_in(run, responses, drafter, layout).folder)
    kept = _kept_choice(run, responses, drafter)
    if kept is None:
        return replace(there, states_bytes=states_bytes)
    done, bytes_there, links = set(there.finished), dict(there.bytes_there), chain(run, responses, drafter)
    states_bytes[kept[0]] = sum(bytes_in(link.states.folder) for link in links)
    bytes_there["training"] = sum(bytes_in(link.training.folder) for link in links if link.training is not None)
    captured = [link.is_settled or link.states.manifest() is not None for link in links]
    trained, last = [link.is_settled for link in links], links[-1].training
    if captured[-1]:
        done.add("extraction")
    if trained[-1] and last is not None:
        done |= {"extraction", "training"}
        _look(run, evaluation_stage(run, product_of(last)), "evaluation", done, bytes_there)
    return replace(
        there,
        finished=frozenset(done),
        bytes_there=bytes_there,
        states_bytes=states_bytes,
        captured_share=sum(captured) / len(captured),
        trained_share=sum(trained) / len(trained),
    )


def bytes_in(folder: Path) -> int:
    """What an earlier run has already written, unfinished files included: it is not free space any more."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _lines(path: Path) -> int:
    """Whole lines of a journal; another run may be writing it, so it is only looked at."""
    if not path.exists():
        return 0
    with path.open("rb") as source:
        return sum(block.count(b"\n") for block in iter(lambda: source.read(1 << 20), b""))


def _kept_choice(run: Run, responses: Product, drafter: Product) -> tuple[Layout, int] | None:
    """Layout and windows of these states: the recipe's, or what was chosen, if choosing again would lose anything."""
    asked = run.recipe.extraction
    if asked.layout != "auto" and asked.windows:
        return asked.layout, asked.windows
    choice = read_choice(record_path(run, responses, drafter))
    if choice is not None and choice.run_id == run.id:
        return choice.layout, choice.windows
    if choice is not None:
        layout, windows = choice.layout, choice.windows
    elif asked.layout != "auto":
        layout, windows = asked.layout, 1
    else:
        return None
    # The first window's folder: once used up, it still says what was there.
    first = states_stage_in(run, responses, drafter, layout, Window(0, windows)).folder
    return (layout, windows) if first.exists() and bytes_in(first) else None


def windows(run: Run, responses: Product, drafter: Product) -> list[Window]:
    """The slices that this run captures and trains on, one after the other; one has all samples.

    What the recipe leaves to the planner, layout and windows, is chosen now, and kept: free space shrinks while a
    store is written, so what is begun stays as it is over all restarts.

    Raises:
        NotEnoughDisk: No layout fits, in no number of windows; what would is in the message.
    """
    if _kept_choice(run, responses, drafter) is None:
        plan = plan_run(run)
        if reason := refusal(plan, run.recipe):
            raise NotEnoughDisk(reason)
        write_choice(
            record_path(run, responses, drafter),
            ChosenLayout(
                layout=plan.choice.layout,
                windows=plan.choice.windows,
                reason=plan.choice.reason,
                run_id=run.id,
                run_name=run.name,
            ),
        )
    return all_windows(resolved_windows(run, responses, drafter))


def known_on_disk(run: Run) -> OnDisk:
    """As ``on_disk``, for a data root that may be anything: what cannot be followed counts as not there."""
    try:
        return on_disk(run)
    except (OSError, HeroRunError):
        return OnDisk(target_is_ready=target_is_ready(run))


def absent_root(recipe: Recipe) -> OnDisk:
    """What to take for granted where the data root is on another machine.

    A target from the hub counts as there: the machine serves it. One that the run makes does not.
    """
    return OnDisk(target_is_ready=recipe.target.source.kind != "package-gguf")
