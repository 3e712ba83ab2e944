"""Preflight on Prefect's own engine: what is refused before anything starts, and the plan in the UI."""

import json
import logging
import subprocess
import sys
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

from flows.recipes import named
from tasks.errors import NotEnoughDisk
from tasks.policies import stage_task
from tasks.preflight import preflight
from tasks.system.manifest import place, write_manifest
from tasks.system.run import Product, Run, product_of
from tests.system.test_plan_model import SMOLLM2, checkpoint


@pytest.fixture(scope="module", autouse=True)
def prefect_api():
    with prefect_test_harness(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@pytest.fixture(autouse=True)
def results_of_this_test(tmp_path):
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        yield


@pytest.fixture
def volume(tmp_path) -> Iterator[Path]:
    """A filesystem of 700 MB, of which none is used."""
    path = tmp_path / "volume"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700000k", "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def run_on(data_root: Path, model: Path, config: dict | None = None, **changes) -> Run:
    """The demo with its target in a folder."""
    source = {"kind": "folder", "name": str(checkpoint(model, config or SMOLLM2))}
    recipe = named("smollm2-cpu", {"target": {"source": source}, **changes})
    return Run(recipe=recipe, id="1", name="a-run", data_root=data_root, engine_python=Path(sys.executable))


def in_a_flow(body) -> object:
    return flow(name="a-flow")(body)()


def newest_table(key: str) -> list[dict[str, str]]:
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        found = client.read_artifacts(artifact_filter=wanted)
    return json.loads(max(found, key=lambda artifact: artifact.updated).data)


@pytest.mark.fault("full-disk-in-every-stage")
def test_a_volume_that_is_too_small_is_refused_with_the_layout_that_fits(volume, tmp_path):
    with pytest.raises(NotEnoughDisk) as refused:
        in_a_flow(lambda: preflight(run_on(volume / "data", tmp_path / "model")))
    message = str(refused.value)
    # 492 MB of states, 360 MB of training and 36 MB of a drafter do not go into 717 MB; with 247 MB of states they do.
    assert message.startswith("this run needs 910 MB and keeps 7.17 MB in reserve, but ")
    assert f"but {volume}/data has 717 MB free:\n" in message
    assert message.endswith("layout fp8 would fit whole, 247 MB (--set extraction.layout=fp8).")


def test_the_layout_that_was_named_is_then_let_through(volume, tmp_path):
    in_a_flow(lambda: preflight(run_on(volume / "data", tmp_path / "model", extraction={"layout": "fp8"})))


def test_a_planner_that_may_choose_takes_it_itself(volume, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        in_a_flow(lambda: preflight(run_on(volume / "data", tmp_path / "model", extraction={"layout": "auto"})))
    assert "states: the most faithful layout that fits whole, fp8 whole leaves" in caplog.text


def test_the_plan_is_an_artifact_by_stage(tmp_path):
    in_a_flow(lambda: preflight(run_on(tmp_path / "data", tmp_path / "model")))
    rows = {row["stage"]: row for row in newest_table("plan")}
    assert list(rows) == [
        "server-load", "drafter-download", "inference", "extraction", "training", "evaluation", "all", "free",
    ]  # fmt: skip
    assert rows["extraction"]["bytes"] == "492 MB"
    # 106,560 tokens at 1,500 tok/s and a load of 30 s.
    assert rows["extraction"]["hours"] == "101 s"
    assert "capture: 71 s (106,560 tokens at 1,500 tok/s, stated)" in rows["extraction"]["basis"]


def test_the_layouts_are_an_artifact(tmp_path):
    in_a_flow(lambda: preflight(run_on(tmp_path / "data", tmp_path / "model")))
    rows = newest_table("plan-layouts")
    assert [(row["layout"], row["whole"], row["taken"]) for row in rows] == [
        ("bf16", "492 MB", "yes"),
        ("fp8", "247 MB", ""),
        ("fp8+topk", "228 MB", ""),
    ]


def test_a_refused_plan_is_shown_too(volume, tmp_path):
    with pytest.raises(NotEnoughDisk):
        in_a_flow(lambda: preflight(run_on(volume / "refused", tmp_path / "model")))
    free = {row["stage"]: row for row in newest_table("plan")}["free"]
    assert free["bytes"] == "717 MB" and f"on {volume}" in free["basis"]


def test_a_snapshot_that_the_checkpoint_contradicts_is_a_warning(tmp_path, caplog):
    config = SMOLLM2 | {"num_hidden_layers": 12}
    in_a_flow(lambda: preflight(run_on(tmp_path / "data", tmp_path / "model", config)))
    assert "says target.snapshot.layers = 30, the checkpoint in" in caplog.text and "has 12." in caplog.text


def test_requests_that_will_only_queue_are_a_warning(tmp_path, caplog):
    in_a_flow(lambda: preflight(run_on(tmp_path / "data", tmp_path / "model", inference={"in_flight": 2000})))
    assert "2000 in flight: 256 run, 1744 queue, for want of sequences (--max-num-seqs=256)" in caplog.text


@stage_task(
    "training",
    place=lambda run: place(run.data_root, "trained", "training", 1),
    need_bytes=lambda run: 0,
    retries=0,
    retry_seconds=1,
    timeout_hours=1,
)
def small_training(run: Run) -> Product:
    stage = place(run.data_root, "trained", "training", 1)
    stage.folder.mkdir(parents=True)
    (stage.folder / "weights").write_bytes(b"x" * 5000)
    return product_of(stage, write_manifest(stage, ["weights"], {}))


def test_after_a_stage_the_plan_shows_what_it_really_took(tmp_path):
    run = run_on(tmp_path / "data", tmp_path / "model")

    def body() -> None:
        preflight(run)
        small_training(run)

    in_a_flow(body)
    rows = {row["stage"]: row for row in newest_table("plan")}
    assert rows["training"]["planned hours"] == "4 min"
    assert rows["training"]["actual hours"] == "0 s"
    assert rows["training"]["written bytes"] == "5.00 kB"
    assert rows["inference"]["actual hours"] == "-" and rows["inference"]["expected to go"] == "90 s"


def test_a_stage_that_fails_has_taken_its_time_too(tmp_path):
    run = run_on(tmp_path / "data", tmp_path / "model")

    def body() -> None:
        preflight(run)
        (run.data_root / "trained").write_text("in the way")
        small_training(run)

    with pytest.raises(OSError):
        in_a_flow(body)
    lines = (run.data_root / "plans" / "timings.jsonl").read_text().splitlines()
    assert [json.loads(line)["stage"] for line in lines] == ["training"]
