"""Downloads inside tasks: the site's hub block, progress and log lines, manifests. Real client, loopback hub."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness

from blocks import DOCUMENT_NAME, HubAccess
from flows.recipes import named
from tasks.drafter import drafter_download, fetch_from_hub
from tasks.errors import BadInput, TransferFailed
from tasks.planning import plan_run
from tasks.recipe import Engine, ModelSource, Server
from tasks.server import open_server
from tasks.system import ledger
from tasks.system.processes import STOP
from tasks.system.run import Product, Run
from tasks.system.target import ensure_target, target_folder, target_stage
from tasks.system.vllm_server import stop_server
from tests.system.stub_hub import COMMIT, Cut, Refuse, StubHub, WrongBytes, stub_hub

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 500,
    "draft_vocab_size": 100,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 512,
    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
}
WEIGHTS = b"weights." * 100_000
FILES = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": WEIGHTS}
SOURCE = ModelSource(kind="hub", name="org/drafter")


@pytest.fixture(scope="module", autouse=True)
def prefect_api():
    with prefect_test_harness(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[StubHub]:
    """A hub that the site's block names, and a site that holds nothing yet."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    STOP.clear()
    with (
        stub_hub("org/drafter", FILES) as hub,
        temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "results"}),
    ):
        block = HubAccess(endpoint=hub.endpoint, token="hf_from_block", tries=2, silence_seconds=0.5)
        block.save(DOCUMENT_NAME, overwrite=True)
        yield hub


@pytest.fixture
def run(tmp_path) -> Run:
    recipe = named("smollm2-cpu")
    recipe = dataclasses.replace(
        recipe,
        reserve_share=0.0,
        target=dataclasses.replace(recipe.target, source=SOURCE),
        drafter=dataclasses.replace(recipe.drafter, source=SOURCE),
    )
    return Run(recipe=recipe, id="1", name="test", data_root=tmp_path / "data", engine_python=Path("python"))


def in_a_flow(body) -> object:
    return flow(name="a-flow")(body)()


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_the_drafter_is_fetched_and_its_commit_is_a_fact(hub, run):
    product: Product = in_a_flow(lambda: drafter_download(run))
    assert product.facts == {"checkpoint": str(product.folder), "layer_ids": [2, 15, 27], "commit": COMMIT}


def test_the_manifest_takes_the_checksums_that_the_download_verified(hub, run):
    folder = in_a_flow(lambda: ensure_target(run, fetch_from_hub))
    entries = {entry["path"]: entry["sha256"] for entry in manifest_of(folder)["files"]}
    assert entries == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    assert target_stage(run).manifest().facts["commit"] == COMMIT


def test_the_blocks_token_is_used(hub, run, tmp_path):
    in_a_flow(lambda: fetch_from_hub(run, SOURCE, tmp_path / "d"))
    assert hub.tokens["/api/models/org/drafter/revision/main"] == "Bearer hf_from_block"


def test_the_progress_is_an_artifact(hub, run, tmp_path):
    in_a_flow(lambda: fetch_from_hub(run, SOURCE, tmp_path / "d"))
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=["download-org-drafter-progress"]))
        newest = client.read_artifacts(artifact_filter=wanted)[-1]
    assert newest.data == 100.0 and newest.description.startswith("downloading: 1 of 1 MB (100 %)")


@pytest.mark.fault("weights-not-on-disk")
def test_the_weights_are_whole_before_vllm_is_started(hub, run):
    """Else vLLM would fetch them inside its start, without a word."""
    engine = Engine(environment={"STAND_IN_THEN": "serve", "STAND_IN_STEPS": "0", "STAND_IN_STEP_SECONDS": "0"})
    recipe = dataclasses.replace(run.recipe, server=Server(engine=engine, stop_grace_seconds=0.5))
    stand_in = Path(__file__).parents[1] / "system" / "stand_in_engine.py"
    here = dataclasses.replace(run, recipe=recipe, engine_python=stand_in)
    stop_server(in_a_flow(lambda: open_server(here, 0)))
    assert (
        "model files: ['config.json', 'manifest.json', 'model.safetensors']"
        in (run.log_folder / "server.log").read_text()
    )
    assert target_stage(run).manifest() is not None


@pytest.mark.fault("weights-not-on-disk")
def test_wrong_weights_never_reach_vllm(hub, run):
    hub.cues = {"model.safetensors": iter([WrongBytes(), WrongBytes()])}
    with pytest.raises(BadInput, match=r"model\.safetensors"):
        in_a_flow(lambda: open_server(run, 0))
    assert not (run.log_folder / "server.log").exists()


@pytest.mark.fault("hub-busy")
def test_how_often_each_fault_happened_is_in_the_ledger_and_the_log(hub, run, tmp_path, caplog):
    hub.cues = {"model.safetensors": iter([Refuse(503), Cut(2_000_000)])}
    hub.files = FILES | {"model.safetensors": bytes(3_000_000)}
    with caplog.at_level(logging.INFO):
        in_a_flow(lambda: fetch_from_hub(run, SOURCE, tmp_path / "d"))
    assert ledger.sentence(ledger.read(run.log_folder)) == "1 x unavailable in download; 1 x cut in download"
    assert "faults on the way: {'unavailable': 1, 'cut': 1}" in caplog.text


@pytest.mark.fault("broken-transfer")
def test_a_half_fetched_target_is_planned_with_what_it_still_needs(hub, run):
    hub.cues = {"model.safetensors": iter([Cut(300_000), Cut(0)])}
    with pytest.raises(TransferFailed):
        in_a_flow(lambda: ensure_target(run, fetch_from_hub))
    there = sum(path.stat().st_size for path in target_folder(run).rglob("*") if path.is_file())
    (need,) = [need for need in plan_run(run).needs if need.path == run.data_root / "targets"]
    assert there >= 300_000 and need.need_bytes == run.recipe.target.snapshot.weights_bytes - there
