"""What stages write down for their children: no environment, in which a key may be; that goes by the process's own."""

import contextlib
from pathlib import Path

import pytest

import tasks.extraction
import tasks.training
from tasks import artifacts
from tasks.hidden_states.windows import WHOLE
from tasks.recipe import to_json
from tasks.stages import responses_stage
from tasks.system.files import write_atomically
from tasks.system.manifest import write_manifest
from tasks.system.run import Product, Run, product_of
from tests.system.small_data_root import small_run

PLANTED = "planted-secret-4711"
KEY = {"VLLM_API_KEY": PLANTED}


class Told(Exception):
    """Raised in the place of starting the child."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Run:
    monkeypatch.setattr(artifacts, "progress_artifact", lambda stage: contextlib.nullcontext(lambda progress: None))
    (tmp_path / "target").mkdir()
    for name in ("config.json", "model.safetensors"):
        write_atomically(tmp_path / "target" / name, "{}")
    return small_run(
        tmp_path,
        target={"source": {"kind": "folder", "name": str(tmp_path / "target")}},
        extraction={"engine": {"environment": KEY}, "layout": "bf16", "windows": 1},
        training={"environment": KEY},
    )


@pytest.fixture
def told(monkeypatch) -> list:
    """The arguments of the child that would have been started."""
    found: list = []

    def keep(*arguments: object, **_: object) -> None:
        found.extend(arguments)
        raise Told

    for module in (tasks.extraction, tasks.training):
        monkeypatch.setattr(module, "run_in_engine", keep)
    return found


@pytest.fixture
def drafter(tmp_path: Path) -> Product:
    return Product(folder=tmp_path / "drafter", content_sha256="1", facts={"checkpoint": "/x", "layer_ids": [1, 2, 3]})


def finished_responses(run: Run) -> Product:
    stage = responses_stage(run)
    stage.folder.mkdir(parents=True)
    (stage.folder / "responses.jsonl").write_text("{}")
    facts = {"training_samples": 2, "validation_samples": 1, "prompt_tokens": 20, "answer_tokens": 40}
    return product_of(stage, write_manifest(stage, ["responses.jsonl"], facts))


def test_the_extractions_child_is_told_in_its_environment_and_not_in_its_spec(run, told, drafter):
    with pytest.raises(Told):
        tasks.extraction.extraction.fn.__wrapped__(run, finished_responses(run), drafter, WHOLE)
    assert KEY in told and PLANTED not in to_json(told[2])


def test_the_trainings_child_is_told_in_its_environment_and_not_in_its_spec(run, told, drafter):
    states = Product(folder=run.data_root / "states", content_sha256="2", facts={"tokens": 60})
    with pytest.raises(Told):
        tasks.training.training.fn.__wrapped__(run, states, drafter, WHOLE, None)
    assert KEY in told and PLANTED not in to_json(told[2])
