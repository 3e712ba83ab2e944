"""Need is decided backwards, from the recipes and from the runs that are kept."""

import os
import shutil
from pathlib import Path

import pytest

from flows.recipes import RECIPES, named
from tasks.extraction import captured
from tasks.need import Needs, needs
from tasks.stages import states_stage
from tasks.system.inventory import KINDS, take_inventory
from tasks.system.manifest import MANIFEST_NAME, consume, place, write_manifest
from tasks.system.run import Product, Run, discard, note_use, product_of
from tests.system.small_data_root import fill, small_run


def needs_of(data_root: Path, keep_runs: int | None = 0) -> Needs:
    return needs(take_inventory(data_root), [named(name) for name in RECIPES], keep_runs)


def unneeded(data_root: Path, keep_runs: int | None = 0) -> set[str]:
    need = needs_of(data_root, keep_runs)
    return {stage.name for stage in take_inventory(data_root).stages if stage.folder not in need.who}


def names(stages, *kinds: str) -> set[str]:
    return {f"{kind}/{stages[kind].folder.name}" for kind in kinds}


def test_everything_of_a_finished_recipe_is_needed(tmp_path):
    fill(small_run(tmp_path))
    assert unneeded(tmp_path) == set()


def test_what_a_changed_training_made_is_not_needed_by_the_recipe(tmp_path):
    fill(small_run(tmp_path))
    other = fill(small_run(tmp_path, training={"epochs": 5}))
    assert unneeded(tmp_path) == names(other, "trained", "evaluations")


def test_what_changed_answers_led_to_is_not_needed_by_the_recipe(tmp_path):
    fill(small_run(tmp_path))
    other = fill(small_run(tmp_path, inference={"temperature": 0.7}))
    assert unneeded(tmp_path) == names(other, "answers", "responses", "states", "trained", "evaluations")


def test_what_a_run_of_the_last_days_used_is_kept(tmp_path):
    fill(small_run(tmp_path, "other", training={"epochs": 5}))
    assert unneeded(tmp_path, keep_runs=None) == set()


def test_what_only_an_old_run_used_is_not_kept(tmp_path):
    other = fill(small_run(tmp_path, "other", training={"epochs": 5}))
    os.utime(tmp_path / "runs" / "other.txt", (1, 1))
    assert unneeded(tmp_path, keep_runs=None) == names(other, "trained", "evaluations")


def test_what_the_newest_runs_used_is_kept_on_demand(tmp_path):
    older = fill(small_run(tmp_path, "older", training={"epochs": 5}))
    os.utime(tmp_path / "runs" / "older.txt", (1, 1))
    fill(small_run(tmp_path, "newer", training={"epochs": 6}))
    assert unneeded(tmp_path, keep_runs=1) == names(older, "trained", "evaluations")


def test_the_journal_that_a_kept_set_of_answers_came_from_is_kept(tmp_path):
    """Also where the run's record names the set alone."""
    run = small_run(tmp_path, inference={"temperature": 0.7})
    stages = fill(run)
    (tmp_path / "runs" / f"{run.name}.txt").write_text("".join(names(stages, "responses")))
    assert not names(stages, "answers") & unneeded(tmp_path, keep_runs=None)


def test_the_journal_of_a_run_that_was_killed_while_answering_is_kept(tmp_path):
    stages = fill(small_run(tmp_path, "filled"))
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(stages["responses"].folder)
    run = small_run(tmp_path, "killed")
    note_use(run, stages["responses"])
    assert names(stages, "answers") <= set((tmp_path / "runs" / "killed.txt").read_text().split())


@pytest.mark.parametrize("kind", ["drafters", "responses", "states", "trained"])
def test_what_follows_damaged_products_is_still_needed(tmp_path, kind):
    stages = fill(small_run(tmp_path))
    next(stages[kind].folder.rglob("*.[sj]*[sl]")).write_text("damaged")
    assert unneeded(tmp_path) == set()


def test_what_follows_a_drafter_that_is_gone_is_found_by_the_manifests(tmp_path):
    stages = fill(small_run(tmp_path))
    shutil.rmtree(stages["drafters"].folder)
    assert unneeded(tmp_path) == set()


def test_what_follows_a_prompt_file_that_is_gone_is_found_by_the_manifests(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    shutil.copy(named("smollm2-cpu").prompts.source, prompts)
    run = small_run(tmp_path, prompts={"source": str(prompts)})
    fill(run)
    prompts.unlink()
    inventory = take_inventory(tmp_path)
    who = needs(inventory, [run.recipe], keep_runs=0).who
    assert {stage.folder for stage in inventory.stages} == set(who) & {stage.folder for stage in inventory.stages}


def test_a_recipe_whose_model_is_gone_is_told(tmp_path):
    source = {"source": {"kind": "folder", "name": str(tmp_path / "no-model")}}
    need = needs(take_inventory(tmp_path), [small_run(tmp_path, target=source).recipe], keep_runs=0)
    assert f"there is no model folder {tmp_path / 'no-model'}" in need.unknown["smollm2-cpu"]


def products(run: Run, stages) -> tuple[Product, Product]:
    return product_of(stages["responses"]), product_of(stages["drafters"])


def test_states_that_a_finished_training_consumed_are_not_captured_again(tmp_path):
    run = small_run(tmp_path)
    stages = fill(run)
    before = stages["states"].manifest()
    consume(stages["states"].folder)
    assert captured(run, *products(run, stages)) == before


def test_consumed_states_whose_training_is_not_finished_are_captured_again(tmp_path):
    run = small_run(tmp_path)
    stages = fill(run)
    consume(stages["states"].folder)
    (stages["trained"].folder / MANIFEST_NAME).unlink()
    assert captured(run, *products(run, stages)) is None


def waiting(data_root: Path, keep_runs: int | None = None) -> str:
    (why,) = needs_of(data_root, keep_runs).waiting.values()
    return why


def test_states_whose_trainings_are_all_finished_are_used_up(tmp_path):
    fill(small_run(tmp_path))
    fill(small_run(tmp_path, "other", training={"epochs": 5}))
    assert waiting(tmp_path) == ""


def test_states_without_a_training_wait(tmp_path):
    stages = fill(small_run(tmp_path))
    discard(stages["trained"])
    assert waiting(tmp_path) == "no finished training has read them"


def test_states_wait_for_the_recipes_own_training(tmp_path):
    other = small_run(tmp_path, training={"epochs": 5})
    fill(other)
    assert "recipe smollm2-cpu trains on them, and its trained/" in waiting(tmp_path)


def test_states_wait_for_the_unfinished_training_of_a_kept_run(tmp_path):
    fill(small_run(tmp_path))
    other = fill(small_run(tmp_path, "other", training={"epochs": 5}))
    (other["trained"].folder / MANIFEST_NAME).unlink()
    assert waiting(tmp_path) == (
        f"run other trains on them, and its trained/{other['trained'].folder.name} is not finished"
    )
    assert waiting(tmp_path, keep_runs=0) == ""


def test_states_wait_for_a_newer_run_that_has_not_come_to_its_training(tmp_path):
    stages = fill(small_run(tmp_path))
    newer = small_run(tmp_path, "newer", training={"epochs": 5})
    note_use(newer, stages["states"])
    os.utime(tmp_path / "runs" / "newer.txt", (2e9, 2e9))
    assert "run newer, the newest that uses them, has not come to its training" in waiting(tmp_path)


@pytest.mark.parametrize("harm", ["no manifest", "a shard is gone"])
def test_states_that_are_not_whole_are_not_used_up(tmp_path, harm):
    stages = fill(small_run(tmp_path))
    name = MANIFEST_NAME if harm == "no manifest" else "shard-00000.safetensors"
    (stages["states"].folder / name).unlink()
    assert waiting(tmp_path).startswith("they are ")


def test_states_of_other_answers_are_not_needed(tmp_path):
    stages = fill(small_run(tmp_path))
    run = small_run(tmp_path)
    responses, drafter = products(run, stages)
    stale = states_stage(run, Product(folder=responses.folder, content_sha256="other"), drafter)
    stale.folder.mkdir()
    write_manifest(stale, [], {})
    assert unneeded(tmp_path) == {f"states/{stale.folder.name}"}


def test_every_kind_of_stage_is_placed_where_the_inventory_looks(tmp_path):
    assert set(fill(small_run(tmp_path))) == set(KINDS)


def test_a_folder_of_an_unknown_stage_is_not_needed(tmp_path):
    stage = place(tmp_path, "trained", "training", 99)
    stage.folder.mkdir(parents=True)
    assert unneeded(tmp_path) == {f"trained/{stage.folder.name}"}
