"""A tiny store of random states."""

from pathlib import Path

import torch

from tasks.hidden_states.layout import StoreFormat
from tasks.hidden_states.shards import CapturedSample, ShardWriter

VOCAB, HIDDEN, LAYERS = 40, 16, 6
LAYER_IDS = [1, 3, 5]


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
    writer = ShardWriter(folder, store, shard_bytes=2000, reserve_bytes=0)
    generator = torch.Generator().manual_seed(7)
    for i, length in enumerate(lengths):
        aux = torch.randn(length, len(layer_ids) * HIDDEN, generator=generator)
        writer.add(
            CapturedSample(
                sample_id=f"s{i}",
                split="validation" if i >= len(lengths) - 2 else "training",
                source="test",
                token_ids=torch.randint(first_token, first_token + 30, (length,), generator=generator).tolist(),
                prompt_tokens=prompt_tokens,
                aux_TAD=(aux * poison if poisoned == f"s{i}" else aux).bfloat16(),
                final_TD=torch.randn(length, HIDDEN, generator=generator).bfloat16(),
            )
        )
    writer.flush()
    return folder
