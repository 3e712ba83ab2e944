"""The plan of a run on this machine: what is on disk counts, what was measured counts, a choice is kept."""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from flows.recipes import named
from tasks.errors import NotEnoughDisk
from tasks.planning import deadline_outlook, known_on_disk, layout_so_far, on_disk, plan_run, windows
from tasks.recipe import changed
from tasks.stages import NotChosenYet, answers_journal, drafter_stage, responses_stage, states_stage, states_stage_in
from tasks.system import timings
from tasks.system.deadline import Deadline
from tasks.system.manifest import MANIFEST_NAME, Stage, consume, write_manifest
from tasks.system.plan.volumes import Volume
from tasks.system.run import Product, Run, product_of
from tests.system.small_data_root import fill, small_run
from tests.system.test_plan_model import SMOLLM2, checkpoint

GB = 10**9
AUTO = {"extraction": {"layout": "auto"}}


@pytest.fixture
def free(monkeypatch):
    """Sets the free space that the planner finds."""

    def set_free(free_bytes: int) -> None:
        volume = Volume(Path("/volume"), free_bytes, 0, 1, "free now")
        monkeypatch.setattr("tasks.system.plan.volumes.Space.volume_of", lambda self, path: volume)

    return set_free


def answered(run: Run, samples: int = 592, tokens: int = 600_000) -> tuple[Product, Product]:
    """Finish answers and drafter alone, so that the states are next."""
    facts = {"training_samples": samples - 32, "validation_samples": 32, "tokens_per_second": 0.0}
    facts |= {"prompt_tokens": tokens // 3, "answer_tokens": tokens - tokens // 3}
    products = []
    for stage, known in ((responses_stage(run), facts), (drafter_stage(run), {"layer_ids": [2, 15, 27]})):
        stage.folder.mkdir(parents=True, exist_ok=True)
        (stage.folder / "file").write_text(stage.name)
        products.append(product_of(stage, write_manifest(stage, ["file"], known)))
    return products[0], products[1]


def settled(run: Run, responses: Product, drafter: Product) -> Stage:
    """The states of the only window, or the first, once layout and windows are chosen."""
    return states_stage(run, responses, drafter, windows(run, responses, drafter)[0])


def test_nothing_is_finished_on_an_empty_data_root(tmp_path):
    there = on_disk(small_run(tmp_path))
    assert (there.finished, there.target_is_ready, there.answered_samples) == (frozenset(), False, 0)


def test_what_is_finished_is_not_planned_again(tmp_path):
    run = small_run(tmp_path)
    fill(run)
    plan = plan_run(run)
    assert (plan.needs, plan.hours) == ([], [])


def test_a_finished_training_needs_no_states_although_they_are_used_up(tmp_path):
    run = small_run(tmp_path)
    stages = fill(run)
    consume(stages["states"].folder)
    assert "extraction" in on_disk(run).finished


def test_used_up_states_of_an_unfinished_training_are_captured_again(tmp_path):
    run = small_run(tmp_path)
    stages = fill(run)
    consume(stages["states"].folder)
    (stages["trained"].folder / MANIFEST_NAME).unlink()
    assert not {"extraction", "training"} & on_disk(run).finished


def test_what_a_stage_has_begun_is_not_written_again(tmp_path):
    run = small_run(tmp_path)
    responses, drafter = answered(run)
    whole = next(need for need in plan_run(run).needs if need.stage == "extraction")
    folder = states_stage(run, responses, drafter).folder
    folder.mkdir(parents=True)
    (folder / "shard-1.safetensors").write_bytes(b"x" * 1_000_000)
    left = next(need for need in plan_run(run).needs if need.stage == "extraction")
    assert whole.need_bytes - left.need_bytes == 1_000_000


def test_answers_in_the_journal_count_a_torn_one_does_not(tmp_path):
    run = small_run(tmp_path)
    journal = answers_journal(run)
    journal.parent.mkdir(parents=True)
    journal.write_text('{"sample_id": "1"}\n{"sample_id": "2"}\n{"samp')
    assert on_disk(run).answered_samples == 2
    assert journal.read_text().endswith('{"samp')


def test_once_answered_the_tokens_are_counted_not_estimated(tmp_path):
    run = small_run(tmp_path)
    answered(run, tokens=600_000)
    tokens = plan_run(run).tokens
    assert (tokens.total, tokens.is_exact, tokens.samples) == (600_000, True, 592)


def test_more_samples_are_estimated_by_the_lengths_of_those_that_are_answered(tmp_path):
    answered(small_run(tmp_path), samples=600, tokens=600_000)
    tokens = plan_run(small_run(tmp_path, prompts={"training_samples": 768})).tokens
    assert (tokens.samples, tokens.total) == (800, 800_000)
    assert tokens.basis.startswith("measured on 600 earlier answers: 333 prompt and 667 answer tokens")


def test_answers_of_other_sampling_measure_nothing(tmp_path):
    answered(small_run(tmp_path, inference={"temperature": 0.7}))
    assert plan_run(small_run(tmp_path)).tokens.basis.startswith("stated")


def test_measured_rates_take_the_place_of_stated_ones(tmp_path):
    run = small_run(tmp_path)
    timings.note(run, "extraction", "extraction", 10.0, tokens=123_450)
    (line,) = [line for line in plan_run(run).hours if line.stage == "extraction" and not line.is_load]
    assert line.basis == "106,560 tokens at 12,345 tok/s, measured"


def test_the_rates_of_answers_and_evaluation_are_in_their_manifests(tmp_path):
    run = small_run(tmp_path)
    stages = fill(run)
    for kind, facts in (
        ("responses", {"tokens_per_second": 999.0}),
        ("evaluations", {"arms": [{"tokens_per_second": 100.0}, {"tokens_per_second": 50.0}]}),
    ):
        path = stages[kind].folder / MANIFEST_NAME
        manifest = json.loads(path.read_text())
        manifest["facts"] |= facts
        path.write_text(json.dumps(manifest))
    plan = plan_run(small_run(tmp_path, prompts={"training_samples": 600}))
    bases = {line.stage: line.basis for line in plan.hours if not line.is_load}
    assert "999 tok/s, measured" in bases["inference"]
    # The same tokens at 100 and at 50 tok/s: 66.7 on average.
    assert "67 tok/s, measured" in bases["evaluation"]


def test_a_prompt_file_that_is_not_there_is_no_reason_not_to_plan(tmp_path):
    run = small_run(tmp_path, prompts={"source": "/not/there.jsonl"})
    assert known_on_disk(run).finished == frozenset() and plan_run(run).needs


def test_the_layout_is_open_until_the_extraction_settles_it(tmp_path):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    with pytest.raises(NotChosenYet, match="no layout is chosen for the states of these answers yet"):
        states_stage(run, responses, drafter)


@pytest.mark.parametrize(
    # 600,000 tokens: 2.77 GB as bf16, 1.39 as fp8, 1.28 as fp8+topk; 0.65 GB for everything else.
    ("free_bytes", "layout"),
    [(6 * GB, "bf16"), (2.4 * GB, "fp8"), (1.98 * GB, "fp8+topk")],
)
def test_the_layout_that_fits_the_counted_tokens_is_taken(tmp_path, free, free_bytes, layout):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(round(free_bytes))
    assert settled(run, responses, drafter).identity["extraction"]["layout"] == layout


def test_the_digest_of_a_chosen_layout_is_that_of_the_same_layout_named(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(round(2.4 * GB))
    chosen = settled(run, responses, drafter)
    named_run = small_run(tmp_path, extraction={"layout": "fp8"})
    assert chosen.digest == states_stage(named_run, responses, drafter).digest


def begin(run: Run, responses: Product, drafter: Product) -> Path:
    """Settle the layout and write the first shard."""
    folder = settled(run, responses, drafter).folder
    folder.mkdir(parents=True)
    (folder / "shard-1.safetensors").write_bytes(b"x" * 1000)
    return folder


@pytest.mark.fault("disk-fills")
def test_a_store_that_is_begun_keeps_its_layout_when_space_shrinks(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(6 * GB)
    folder = begin(run, responses, drafter)
    free(round(2.4 * GB))
    later = dataclasses.replace(run, id="id-2", name="later")
    assert settled(later, responses, drafter).folder == folder
    assert layout_so_far(later) == "bf16" and plan_run(later).choice.layout == "bf16"


def test_a_choice_of_which_nothing_was_written_is_made_again(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(6 * GB)
    settled(run, responses, drafter)
    free(round(2.4 * GB))
    later = dataclasses.replace(run, id="id-2", name="later")
    assert settled(later, responses, drafter).identity["extraction"]["layout"] == "fp8"


def test_within_a_run_a_choice_is_made_once(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(6 * GB)
    first = settled(run, responses, drafter)
    free(round(2.4 * GB))
    assert settled(run, responses, drafter) == first


def test_other_answers_get_a_choice_of_their_own(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(6 * GB)
    begin(run, responses, drafter)
    others = dataclasses.replace(responses, content_sha256="other")
    with pytest.raises(NotChosenYet):
        states_stage(run, others, drafter)


def test_the_choice_is_kept_with_its_reason(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(round(2.4 * GB))
    settled(run, responses, drafter)
    (path,) = (tmp_path / "plans").glob("layout-*.json")
    kept = json.loads(path.read_text())
    assert (kept["layout"], kept["windows"], kept["run_name"]) == ("fp8", 1, run.name)
    assert kept["reason"].startswith("the most faithful layout that fits whole, fp8 whole leaves")


def test_a_record_that_is_torn_is_as_if_there_were_none(tmp_path, free):
    run = small_run(tmp_path, **AUTO)
    responses, drafter = answered(run)
    free(6 * GB)
    settled(run, responses, drafter)
    (path,) = (tmp_path / "plans").glob("layout-*.json")
    path.write_text("{")
    assert settled(run, responses, drafter).identity["extraction"]["layout"] == "bf16"


@pytest.mark.fault("full-disk-in-every-stage")
def test_where_the_counted_tokens_fit_in_no_layout_the_extraction_is_refused_with_what_would(tmp_path, free):
    run = small_run(tmp_path, extraction={"layout": "auto", "windows": 1})
    responses, drafter = answered(run)
    free(round(1.5 * GB))
    with pytest.raises(NotEnoughDisk, match=r"what would fit: bf16 in \d windows; .* training samples as fp8\+topk"):
        settled(run, responses, drafter)
    assert not list((tmp_path / "plans").glob("layout-*.json"))


def test_only_the_layout_with_logits_depends_on_the_drafter_and_on_how_many_are_kept(tmp_path):
    run = small_run(tmp_path)
    responses, drafter = answered(run)
    more = dataclasses.replace(run, recipe=changed(run.recipe, {"extraction": {"top_k": 32}}))
    differ = {
        layout: states_stage_in(run, responses, drafter, layout) != states_stage_in(more, responses, drafter, layout)
        for layout in ("bf16", "fp8", "fp8+topk")
    }
    assert differ == {"bf16": False, "fp8": False, "fp8+topk": True}


def test_kimis_layout_is_left_to_the_planner_and_the_demos_is_not():
    assert (named("kimi-k25").extraction.layout, named("smollm2-cpu").extraction.layout) == ("auto", "bf16")


def outlook(data_root: Path, hours: float, then: str = "stop") -> str:
    """Of the reference run, on a machine that serves the target."""
    source = {"kind": "folder", "name": str(checkpoint(data_root / "model", SMOLLM2))}
    changes = {"target": {"source": source}, "prompts": {"source": "/not/there.jsonl"}, "drafter": {"source": None}}
    recipe = changed(named("kimi-k25"), changes)
    deadline = Deadline(at_seconds=time.time() + hours * 3600, wind_down_seconds=600.0, then=then)
    run = dataclasses.replace(small_run(data_root), recipe=recipe, deadline=deadline)
    return deadline_outlook(run, plan_run(run))


@pytest.mark.parametrize(
    ("hours", "says"),
    [
        (11.5, "at its deadline, 11.5 h away, the run should have come to inference 81 %; it takes 3 runs as long"),
        (40.0, "the run should be done in 31.2 h; its deadline is 40.0 h away"),
        (0.3, "the deadline is 18 min away, too near for a load of the target and the work that needs it"),
    ],
)
def test_before_the_start_it_is_said_how_far_a_run_should_come_by_its_deadline(tmp_path, free, hours, says):
    free(100_000 * GB)
    assert outlook(tmp_path, hours) == says


def test_a_run_that_is_to_finish_is_not_stopped_so_nothing_is_said(tmp_path):
    assert outlook(tmp_path, 11.5, then="finish") == ""


def test_planning_writes_nothing(tmp_path):
    run = small_run(tmp_path, **AUTO)
    answered(run)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan_run(run)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
