"""A run in windows with real trainings of stores that are there already: what it leaves, and what it takes at most."""

import shutil
import subprocess

import pytest
from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings
from prefect.testing.utilities import prefect_test_harness

import tasks.training
from flows.recipes import named
from tasks.extraction import captured
from tasks.hidden_states.index import INDEX_NAME
from tasks.hidden_states.windows import Window
from tasks.planning import windows
from tasks.recipe import ModelSource, changed
from tasks.stages import responses_stage, states_stage
from tasks.system.manifest import write_manifest
from tasks.system.plan.layouts import peak_bytes
from tasks.system.plan.model import model_facts
from tasks.system.plan.needs import hand_over_bytes, store_bytes, training_bytes
from tasks.system.plan.tokens import counted_tokens
from tasks.system.run import Product, Run, product_of
from tasks.system.target import target_folder
from tests.conftest import PROJECT
from tests.system.disk_peak import Peak

COUNT = 3
# In the engine environment: a target of a width at which states weigh more than their index, and what the stages
# before would have left. 120 samples of 40 tokens; each window's store is a part of the whole.
MAKE_INPUTS = """
import sys
import small_states
small_states.HIDDEN = 256
from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec
from tasks.hidden_states.windows import Window, in_window
from tasks.recipe import Drafter
from tasks.system.child import Reporter
folder = Path(sys.argv[1])
target, drafter = small_states.write_target(folder / "target"), Drafter(layer_ids=[1, 3, 5], draft_vocab_tokens=20)
lengths = (40,) * 120
small_states.write_states(folder / "whole", lengths=lengths)
responses = small_states.write_responses(folder / "responses.jsonl", folder / "whole")
for index in range(3):
    only = {r.sample_id for r in in_window(responses, Window(index, 3))}
    small_states.write_states(folder / f"store-{index}", lengths=lengths, only=only)
initialize(InitialDrafterSpec(target_folder=target, out_folder=folder / "initial", drafter=drafter),
           Reporter(folder / "progress"))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, engine_python) -> Run:
    folder = tmp_path_factory.mktemp("windows")
    environment = {"PYTHONPATH": str(PROJECT / "tests" / "eagle3")}
    subprocess.run([engine_python, "-c", MAKE_INPUTS, folder], check=True, env=environment, cwd=PROJECT)
    changes = {
        "target": {"source": ModelSource(kind="folder", name=str(folder / "target"))},
        "drafter": {"layer_ids": [1, 3, 5], "draft_vocab_tokens": 20},
        "extraction": {"windows": COUNT},
        "training": {"pack_tokens": 160, "epochs": 2, "device": "cpu", "checkpoint_every_seconds": 1e-9},
    }
    recipe = changed(named("smollm2-cpu"), changes)
    return Run(recipe=recipe, id="1", name="test", data_root=folder / "data", engine_python=engine_python)


@pytest.fixture(scope="module")
def made(run):
    """The run, watched: the trained product, what was on disk at most, and the states of its tasks in a second run."""
    inputs = run.data_root.parent
    responses = responses_stage(run)
    responses.folder.mkdir(parents=True)
    shutil.copy(inputs / "responses.jsonl", responses.folder / "responses.jsonl")
    facts = {"training_samples": 118, "validation_samples": 2, "prompt_tokens": 480, "answer_tokens": 4320}
    answers = product_of(responses, write_manifest(responses, ["responses.jsonl"], facts))
    drafter = Product(
        folder=inputs / "initial",
        content_sha256="drafter",
        facts={"checkpoint": str(inputs / "initial"), "layer_ids": [1, 3, 5]},
    )
    results = {PREFECT_RESULTS_LOCAL_STORAGE_PATH: inputs / "results", PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with prefect_test_harness(server_startup_timeout=120), temporary_settings(results):
        with Peak(run.data_root / "states", run.data_root / "trained") as peak:
            trained = train(run, answers, drafter)
        captures.clear()
        again = train(run, answers, drafter)
    return trained, peak, again, answers


captures: list[Window] = []
"""Windows whose states had to be made."""


@flow
def train(run: Run, responses: Product, drafter: Product) -> Product:
    """As the hero run does, the states being copied from where they are."""
    trained = None
    for window in windows(run, responses, drafter):
        stage = states_stage(run, responses, drafter, window)
        manifest = captured(run, responses, drafter, window)
        if manifest is None:
            captures.append(window)
            shutil.copytree(run.data_root.parent / f"store-{window.index}", stage.folder)
            files = sorted(path.name for path in stage.folder.iterdir())
            manifest = write_manifest(stage, files, {"tokens": 1}, bookkeeping=(INDEX_NAME,))
        trained = tasks.training.training(run, product_of(stage, manifest), drafter, window, trained)
    assert trained is not None
    return trained


@pytest.mark.slow_fault
def test_the_last_window_leaves_the_drafters_and_nothing_else_is_left(run, made):
    trained = made[0]
    assert (trained.folder / "best" / "model.safetensors").exists()
    assert not list((run.data_root / "states").rglob("*.safetensors"))
    assert not list((run.data_root / "trained").rglob("*.pt"))


@pytest.mark.slow_fault
def test_at_most_one_windows_states_were_on_disk_as_planned(run, made, happened):
    _, peak, _, answers = made
    tokens, facts = counted_tokens(answers.facts), model_facts(run.recipe, target_folder(run))
    planned = peak_bytes(store_bytes(run.recipe, facts, "bf16", tokens.total, tokens.samples), tokens, COUNT)
    happened(f"at most {peak.each[0]:,} bytes of states at once, {planned:,} were planned")
    assert peak.each[0] == pytest.approx(planned, rel=0.05)


@pytest.mark.slow_fault
def test_states_checkpoints_and_hand_overs_together_took_no_more_than_planned(run, made, happened):
    _, peak, _, answers = made
    tokens, facts = counted_tokens(answers.facts), model_facts(run.recipe, target_folder(run))
    states = peak_bytes(store_bytes(run.recipe, facts, "bf16", tokens.total, tokens.samples), tokens, COUNT)
    planned = states + training_bytes(run.recipe, facts) + hand_over_bytes(run.recipe, facts)
    happened(f"at most {peak.all:,} bytes at once, {planned:,} were planned")
    assert peak.all <= planned


@pytest.mark.slow_fault
def test_a_second_start_captures_and_trains_nothing(made):
    trained, _, again, _ = made
    assert again == trained and captures == []
