"""Which settings share a pool of answers: those that give the same answers, and no others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.recipes import named
from tasks.recipe import ModelSource, changed
from tasks.stages import answers_journal, responses_stage
from tasks.system.run import Run

ROWS = [{"conversations": [{"from": "human", "value": f"Question {i}?"}], "source": "test"} for i in range(4)]


def write(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def run(tmp_path) -> Run:
    recipe = changed(named("smollm2-cpu"), {"prompts": {"source": write(tmp_path / "rows.jsonl", ROWS)}})
    return Run(recipe=recipe, id="1", name="test", data_root=tmp_path / "data", engine_python=Path("python"))


def with_changes(run: Run, changes) -> Run:
    return replace(run, recipe=changed(run.recipe, changes))


@pytest.mark.fault("resumed-with-other-settings")
@pytest.mark.parametrize(
    "changes",
    [
        {"inference": {"temperature": 0.7}},
        {"inference": {"top_p": 0.9}},
        {"inference": {"max_new_tokens": 77}},
        {"target": {"source": ModelSource(kind="hub", name="someone/another-model", revision="main")}},
    ],
    ids=lambda changes: next(iter(next(iter(changes.values())))),
)
def test_another_model_or_sampling_has_a_journal_of_its_own(run, changes):
    assert answers_journal(with_changes(run, changes)) != answers_journal(run)


@pytest.mark.fault("resumed-with-other-settings")
def test_a_model_folder_is_known_by_its_content(run, tmp_path):
    source = ModelSource(kind="folder", name=str(tmp_path / "model"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model" / "config.json").write_text("{}")
    local = replace(run, recipe=replace(run.recipe, target=replace(run.recipe.target, source=source)))
    before = answers_journal(local)
    (tmp_path / "model" / "config.json").write_text('{"rope_theta": 2}')
    assert answers_journal(local) != before


@pytest.mark.fault("resumed-with-other-settings")
def test_other_prompts_are_another_set_of_the_same_pool(run, tmp_path):
    """A row that both files have is answered once; which rows belong to a set is the set's own matter."""
    before = (answers_journal(run), responses_stage(run).digest)
    write(tmp_path / "rows.jsonl", [*ROWS, {**ROWS[0], "conversations": [{"from": "human", "value": "New?"}]}])
    assert answers_journal(run) == before[0] and responses_stage(run).digest != before[1]


def test_how_it_is_asked_keeps_the_journal_and_the_set(run):
    other = with_changes(run, {"inference": {"in_flight": 3, "request_retries": 9}})
    assert (answers_journal(other), responses_stage(other).digest) == (
        answers_journal(run),
        responses_stage(run).digest,
    )


def test_more_samples_keep_the_journal(run):
    assert answers_journal(with_changes(run, {"prompts": {"training_samples": 12_345}})) == answers_journal(run)
