"""What of a run in windows is made, used up and deleted: decided backwards, and the same after every kill."""

import dataclasses
import json
from pathlib import Path

import pytest

from tasks.extraction import captured
from tasks.hidden_states.index import INDEX_NAME
from tasks.hidden_states.windows import Window
from tasks.need import needs
from tasks.planning import on_disk, plan_run, windows
from tasks.recipe import changed
from tasks.stages import drafter_stage, evaluation_stage, responses_stage, states_stage, training_stage
from tasks.system.inventory import take_inventory
from tasks.system.manifest import MANIFEST_NAME, Stage, consume, write_manifest
from tasks.system.plan.needs import STAGES
from tasks.system.plan.volumes import Volume
from tasks.system.run import Product, Run, product_of
from tasks.training import trained
from tasks.windows import all_windows, chain, delete_used_up
from tests.system.small_data_root import small_run, write_shard

COUNT = 3
GB = 10**9


@pytest.fixture
def run(tmp_path) -> Run:
    return small_run(tmp_path, extraction={"windows": COUNT})


def sources(run: Run) -> tuple[Product, Product]:
    """Answers and drafter, finished."""
    facts = {"training_samples": 560, "validation_samples": 32, "prompt_tokens": 200_000, "answer_tokens": 400_000}
    products = []
    for stage, known in ((responses_stage(run), facts), (drafter_stage(run), {"layer_ids": [2, 15, 27]})):
        products.append(finish(stage, known, "file"))
    return products[0], products[1]


def finish(stage: Stage, facts: dict[str, object], name: str) -> Product:
    if stage.manifest() is None:
        path = stage.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{stage.name} {stage.digest}\n" * 100)
        write_manifest(stage, [name], facts)
    return product_of(stage)


@dataclasses.dataclass
class Made:
    """Stages of the windows that were made."""

    states: list[Stage] = dataclasses.field(default_factory=list)
    trainings: list[Stage] = dataclasses.field(default_factory=list)


def make(run: Run, states: int = COUNT, trainings: int = COUNT, deletes: bool = True) -> Made:
    """Go through the windows as the flow does, as far as this many states and trainings."""
    responses, drafter = sources(run)
    made, previous = Made(), None
    for window in all_windows(COUNT)[:states]:
        made.states.append(states_stage(run, responses, drafter, window))
        write_shard(made.states[-1].folder, window.index)
        files = [INDEX_NAME, f"shard-{window.index:05d}.safetensors"]
        write_manifest(made.states[-1], files, {"tokens": 1}, bookkeeping=(INDEX_NAME,))
        if window.index < trainings:
            made.trainings.append(training_stage(run, product_of(made.states[-1]), drafter, previous))
            previous = finish(made.trainings[-1], {"steps": 1}, "weights")
            if deletes:
                delete_used_up(run, responses, drafter)
    return made


def is_made(run: Run) -> list[tuple[bool, bool]]:
    """Of every window, whether its states and its training count as made, asked as Prefect asks."""
    responses, drafter = sources(run)
    answers, previous = [], None
    for link in chain(run, responses, drafter):
        states = captured(run, responses, drafter, link.window)
        training = None
        if states is not None:
            product = product_of(link.states, states)
            training = trained(run, product, drafter, link.window, previous)
            stage = training_stage(run, product, drafter, previous)
            previous = product_of(stage, training) if training else None
        answers.append((states is not None, training is not None))
    return answers


def left(stages: list[Stage]) -> list[bool]:
    """Whether a stage's files are there."""
    return [stage.manifest() is not None for stage in stages]


def test_of_a_finished_run_only_the_last_training_is_left_and_all_count_as_made(run):
    made = make(run)
    assert (left(made.states), left(made.trainings)) == ([False] * 3, [False, False, True])
    assert is_made(run) == [(True, True)] * 3


def test_the_states_of_a_window_are_gone_once_it_is_trained_on_and_its_hand_over_stays(run):
    made = make(run, states=2, trainings=1)
    assert (left(made.states), left(made.trainings)) == ([False, True], [True])
    assert is_made(run) == [(True, True), (True, False), (False, False)]


@pytest.mark.fault("kill-anywhere")
def test_what_a_kill_kept_from_being_deleted_is_deleted_at_the_next_start(run):
    """Killed between a training's manifest and the deletion of what it used up."""
    made = make(run, states=2, trainings=2, deletes=False)
    assert is_made(run) == [(True, True), (True, True), (False, False)]
    assert (left(made.states), left(made.trainings)) == ([False, False], [False, True])


@pytest.mark.fault("kill-anywhere")
def test_killed_within_the_deletion_the_rest_is_deleted_at_the_next_start(run, monkeypatch):
    made = make(run, states=1, trainings=1, deletes=False)
    shard = made.states[0].folder / "shard-00000.safetensors"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", lambda path, missing_ok=False: interrupted(path, missing_ok))
        consume(made.states[0].folder)
    assert shard.exists() and not (made.states[0].folder / MANIFEST_NAME).exists()
    assert is_made(run)[0] == (True, True) and not shard.exists()


unlinked = Path.unlink


def interrupted(path: Path, missing_ok: bool) -> None:
    if path.suffix == ".safetensors":
        raise KeyboardInterrupt
    unlinked(path, missing_ok)


def test_checkpoints_that_a_kill_left_in_a_finished_training_are_deleted(run):
    made = make(run, states=1, trainings=1, deletes=False)
    checkpoint = made.trainings[0].folder / "checkpoints" / "step-00000001.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_text("weights")
    is_made(run)
    assert not checkpoint.exists()


def test_a_hand_over_that_was_used_up_is_made_again_when_what_followed_is_gone(run):
    """Then everything is, from the first window on: what it was made from is used up too."""
    made = make(run)
    (made.trainings[2].folder / MANIFEST_NAME).unlink()
    assert is_made(run) == [(False, False)] * 3


def test_states_that_are_not_trained_on_stay(run):
    made = make(run, states=2, trainings=1, deletes=False)
    responses, drafter = sources(run)
    delete_used_up(run, responses, drafter)
    assert left(made.states) == [False, True]


def test_another_answer_set_has_its_own_windows(run):
    make(run)
    responses, drafter = sources(run)
    others = dataclasses.replace(responses, content_sha256="other")
    assert captured(run, others, drafter, Window(0, COUNT)) is None


def test_a_run_in_windows_has_nothing_left_to_plan_when_it_is_finished(run):
    made = make(run)
    finish(evaluation_stage(run, product_of(made.trainings[-1])), {"arms": []}, "report.md")
    assert on_disk(run).finished == set(STAGES)


def test_the_plan_counts_the_windows_that_are_left(run):
    make(run, states=2, trainings=1)
    lines = {line.stage: line.basis for line in plan_run(run).hours if not line.is_load}
    # 600,000 tokens: one window of three is left to capture, two of three to train on, two epochs.
    assert lines["extraction"].startswith("200,000 tokens") and lines["training"].startswith("800,000 tokens")


def test_asked_for_or_not_one_window_is_what_it_was_without_windows(tmp_path):
    plain, one = small_run(tmp_path), small_run(tmp_path, extraction={"windows": 1})
    assert states_stage(plain, *sources(plain)) == states_stage(one, *sources(one))
    assert "windows" not in states_stage(one, *sources(one)).identity["extraction"]


def test_every_window_and_every_number_of_windows_has_its_own_states(run):
    responses, drafter = sources(run)
    all_of = [Window(index, count) for count in (1, 2, 3) for index in range(count)]
    assert len({states_stage(run, responses, drafter, window).digest for window in all_of}) == 6


def test_a_training_is_another_when_the_one_before_it_is(run):
    _, drafter = sources(run)
    states = Product(folder=Path("states"), content_sha256="states")
    before = [Product(folder=Path("before"), content_sha256=content) for content in ("one", "two")]
    stages = [training_stage(run, states, drafter, previous) for previous in (None, *before)]
    assert len({stage.digest for stage in stages}) == 3


@pytest.fixture
def free(monkeypatch):
    """Sets the free space that the planner finds."""

    def set_free(free_bytes: float) -> None:
        volume = Volume(Path("/volume"), round(free_bytes), 0, 1, "free now")
        monkeypatch.setattr("tasks.system.plan.volumes.Space.volume_of", lambda self, path: volume)

    return set_free


def test_a_volume_that_nothing_fits_whole_gets_windows(tmp_path, free):
    """600,000 tokens take 2.77 GB as bf16 and 1.28 as fp8+topk; with 0.65 GB of everything else, 1.8 are too few."""
    run = small_run(tmp_path)
    free(1.8 * GB)
    assert len(windows(run, *sources(run))) == 3
    (path,) = (tmp_path / "plans").glob("layout-*.json")
    kept = json.loads(path.read_text())
    assert (kept["layout"], kept["windows"]) == ("bf16", 3)
    assert kept["reason"].endswith("; nothing fits whole, so it takes 3 windows")


@pytest.mark.fault("disk-fills")
def test_the_number_of_windows_is_kept_over_restarts_whatever_is_free(tmp_path, free):
    run = small_run(tmp_path)
    free(1.8 * GB)
    first = windows(run, *sources(run))[0]
    write_shard(states_stage(run, *sources(run), first).folder, 0)
    later = dataclasses.replace(run, id="id-2", name="later")
    for free_bytes in (9 * GB, 1.2 * GB):
        free(free_bytes)
        assert len(windows(later, *sources(later))) == 3
        assert plan_run(later).choice.windows == 3


def test_states_that_were_captured_whole_stay_whole_without_a_record(tmp_path, free):
    """Of a data root from before there were windows."""
    run = small_run(tmp_path)
    write_shard(states_stage(run, *sources(run)).folder, 0)
    free(1.8 * GB)
    assert windows(run, *sources(run)) == [Window(0, 1)]


def test_a_changed_number_of_windows_is_what_is_asked_for(run):
    responses, drafter = sources(run)
    more = dataclasses.replace(run, recipe=changed(run.recipe, {"extraction": {"windows": 5}}))
    assert (len(windows(run, responses, drafter)), len(windows(more, responses, drafter))) == (3, 5)


def test_all_windows_of_a_recipe_are_needed(run, tmp_path):
    make(run)
    who = needs(take_inventory(tmp_path), [run.recipe], keep_runs=0).who
    kinds = {stage.name for stage in take_inventory(tmp_path).stages if stage.folder not in who}
    assert kinds == set()
