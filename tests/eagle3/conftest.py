"""A tiny target and a tiny store of its states."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_states import HIDDEN, LAYER_IDS, LAYERS, VOCAB, write_states

from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec, TrainingSpec
from tasks.recipe import Drafter, Training
from tasks.system.child import Reporter


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    """A Llama checkpoint with what the trainer reads of one, and nothing else."""
    folder = tmp_path / "target"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(3)
    save_file(
        {
            "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator).bfloat16(),
            "model.norm.weight": torch.ones(HIDDEN).bfloat16(),
            "model.layers.0.post_attention_layernorm.weight": torch.zeros(HIDDEN),
        },
        folder / "model.safetensors",
    )
    return folder


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
