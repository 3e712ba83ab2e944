"""The training task as the flow runs it, its child included, on a tiny target."""

import json
import subprocess
from pathlib import Path

import pytest
from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings
from prefect.testing.utilities import prefect_test_harness

import tasks.training
from flows.recipes import named
from tasks.eagle3.spec import CHECKPOINTS_NAME
from tasks.hidden_states.windows import WHOLE
from tasks.recipe import ModelSource, changed
from tasks.stages import training_stage
from tasks.system.files import sha256_of
from tasks.system.run import Product, Run
from tests.conftest import PROJECT

LAYER_IDS = [1, 3, 5]
# In the engine environment: what the stages before would have left.
MAKE_INPUTS = """
import sys
from pathlib import Path
from small_states import write_states, write_target
from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec
from tasks.recipe import Drafter
from tasks.system.child import Reporter
folder = Path(sys.argv[1])
target, drafter = write_target(folder / "target"), Drafter(layer_ids=[1, 3, 5], draft_vocab_tokens=20)
write_states(folder / "states")
spec = InitialDrafterSpec(target_folder=target, out_folder=folder / "initial", drafter=drafter)
initialize(spec, Reporter(folder / "progress"))
"""


@pytest.fixture(autouse=True)
def prefect_api(tmp_path):
    results = {PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "results", PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with prefect_test_harness(server_startup_timeout=120), temporary_settings(results):
        yield


@pytest.fixture
def inputs(tmp_path, engine_python):
    """The run, its states and its drafter."""
    environment = {"PYTHONPATH": str(PROJECT / "tests" / "eagle3")}
    subprocess.run([engine_python, "-c", MAKE_INPUTS, tmp_path], check=True, env=environment, capture_output=True)
    changes = {
        "target": {"source": ModelSource(kind="folder", name=str(tmp_path / "target"))},
        "drafter": {"layer_ids": LAYER_IDS, "draft_vocab_tokens": 20},
        "training": {"pack_tokens": 40, "epochs": 5, "device": "cpu"},
    }
    recipe = changed(named("smollm2-cpu"), changes)
    run = Run(recipe=recipe, id="1", name="test", data_root=tmp_path / "data", engine_python=engine_python)
    states = Product(folder=tmp_path / "states", content_sha256="states", facts={"tokens": 92})
    facts = {"checkpoint": str(tmp_path / "initial"), "layer_ids": LAYER_IDS}
    return run, states, Product(folder=tmp_path / "initial", content_sha256="drafter", facts=facts)


@flow
def train(run: Run, states: Product, drafter: Product) -> Product:
    return tasks.training.training(run, states, drafter, WHOLE, None)


def reported_phases(run: Run) -> set[str]:
    lines = (run.log_folder / "train.json.progress.jsonl").read_text().splitlines()
    return {json.loads(line)["phase"] for line in lines}


@pytest.mark.slow_fault
@pytest.mark.fault("resume-is-exact")
def test_ended_after_the_training_and_before_the_manifest_nothing_is_trained_again(inputs, monkeypatch, happened):
    run = inputs[0]
    folder: Path = training_stage(*inputs).folder
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="killed here"):
        patched.setattr(tasks.training, "write_manifest", killed)
        train(*inputs)
    assert "training" in reported_phases(run) and (folder / CHECKPOINTS_NAME).exists()
    trained = sha256_of(folder / "best" / "model.safetensors")
    product = train(*inputs)
    assert "training" not in reported_phases(run)
    assert sha256_of(product.folder / "best" / "model.safetensors") == trained
    assert not (folder / CHECKPOINTS_NAME).exists()
    happened("killed between the last checkpoint and the manifest: exported again, same bytes, no step trained again")


def killed(*_, **__):
    raise RuntimeError("killed here")
