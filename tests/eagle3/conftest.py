"""A tiny target and a tiny store of its states."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_states import HIDDEN, LAYERS, VOCAB, write_states


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
