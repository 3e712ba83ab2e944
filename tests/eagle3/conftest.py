"""A tiny target and a tiny store of its states."""

from pathlib import Path

import pytest
from small_states import LAYER_IDS, write_states, write_target

from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec, TrainingSpec
from tasks.recipe import Drafter, Training
from tasks.system.child import Reporter


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def states_folder(tmp_path: Path) -> Path:
    return write_states(tmp_path / "states")


@pytest.fixture
def spec(tmp_path: Path, target_folder: Path, states_folder: Path) -> TrainingSpec:
    """Ten steps from scratch."""
    drafter = Drafter(layer_ids=LAYER_IDS, draft_vocab_tokens=20)
    initialize(
        InitialDrafterSpec(target_folder=target_folder, out_folder=tmp_path / "initial", drafter=drafter),
        Reporter(tmp_path / "initial.progress"),
    )
    training = Training(
        epochs=5, pack_tokens=40, learning_rate=1e-2, validate_every_steps=3, optimizer="muon", device="cpu"
    )
    return TrainingSpec(
        target_folder=target_folder,
        base_folder=tmp_path / "initial",
        states_folder=states_folder,
        out_folder=tmp_path / "out",
        reserve_bytes=0,
        drafter=drafter,
        training=training,
    )


@pytest.fixture
def reported_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.eagle3.trainer.REPORT_EVERY_SECONDS", 0.0)
