"""A tiny target and a tiny store of random states of it."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tasks.hidden_states.layout import StoreFormat
from tasks.hidden_states.shards import CapturedSample, ShardWriter

VOCAB, HIDDEN, LAYERS = 40, 16, 6
LAYER_IDS = [1, 3, 5]


def write_target(folder: Path) -> Path:
    """A Llama checkpoint with what the trainer reads of one, and nothing else."""
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


def write_states(
    folder: Path,
    layer_ids: list[int] = LAYER_IDS,
    lengths: tuple[int, ...] = (12, 9, 15, 11, 14, 8, 10, 13),
    final_is_normed: bool = True,
    poisoned: str = "",
    poison: float = float("nan"),
    prompt_tokens: int = 4,
    first_token: int = 0,
) -> Path:
    """A store of random states; the last two samples are held out, and ``poisoned`` is full of ``poison``."""
    store = StoreFormat("bf16", layer_ids, HIDDEN, final_is_normed)
    writer = ShardWriter(folder, store, reserve_bytes=0)
    generator = torch.Generator().manual_seed(7)
    for i, length in enumerate(lengths):
        aux = torch.randn(length, len(layer_ids) * HIDDEN, generator=generator)
        sample = CapturedSample(
            sample_id=f"s{i}",
            split="validation" if i >= len(lengths) - 2 else "training",
            source="test",
            token_ids=torch.randint(first_token, first_token + 30, (length,), generator=generator).tolist(),
            prompt_tokens=prompt_tokens,
            aux_TAD=(aux * poison if poisoned == f"s{i}" else aux).bfloat16(),
            final_TD=torch.randn(length, HIDDEN, generator=generator).bfloat16(),
        )
        writer.write(f"shard-{i}.safetensors", [sample])
    return folder
