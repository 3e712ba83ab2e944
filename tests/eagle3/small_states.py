"""A tiny target and a tiny store of random states of it."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from tasks.hidden_states.draft_vocab import DraftVocab, write_draft_vocab
from tasks.hidden_states.encoding import encode_aux, encode_teacher
from tasks.hidden_states.layout import Layout, StoreFormat
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.shards import CapturedSample, ShardWriter
from tasks.hidden_states.teacher import FinalStates, Teacher
from tasks.hidden_states.top_logits import top_logits
from tasks.system.responses import Response

VOCAB, HIDDEN, LAYERS = 40, 16, 6
LAYER_IDS = [1, 3, 5]
DRAFT_IDS, TOP_K = list(range(4, 24)), 8
"""Of stores of top logits: the draft vocabulary, and how many logits a token has."""


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
    save_file(
        {
            "model.embed_tokens.weight": target_head(),
            "model.norm.weight": torch.ones(HIDDEN).bfloat16(),
            "model.layers.0.post_attention_layernorm.weight": torch.zeros(HIDDEN),
        },
        folder / "model.safetensors",
    )
    return folder


def target_head() -> torch.Tensor:
    """The target's embeddings, which are its lm_head too, [V, D]."""
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3)).bfloat16()


def _teacher(layout: Layout, final_TD: torch.Tensor, draft_ids: list[int]) -> Teacher:
    if layout != "fp8+topk":
        return FinalStates(final_TD)
    head_VD = target_head().float()
    teacher = top_logits(lambda block: block.float() @ head_VD.T, final_TD, torch.tensor(draft_ids), TOP_K, VOCAB)
    assert teacher is not None
    return teacher


def write_states(
    folder: Path,
    layer_ids: list[int] = LAYER_IDS,
    lengths: tuple[int, ...] = (12, 9, 15, 11, 14, 8, 10, 13),
    final_is_normed: bool = True,
    poisoned: str = "",
    poison: float = float("nan"),
    prompt_tokens: int = 4,
    first_token: int = 0,
    layout: Layout = "bf16",
    draft_ids: list[int] = DRAFT_IDS,
    only: Collection[str] | None = None,
) -> Path:
    """A store of random states; the last two samples are held out, and ``poisoned`` is full of ``poison``.

    With ``only`` it has these samples, as they are in the whole store.
    """
    store = StoreFormat(layout, layer_ids, HIDDEN, final_is_normed)
    if layout == "fp8+topk":
        vocab = DraftVocab(VOCAB, draft_ids)
        store = replace(store, top_k=TOP_K, vocab_map_sha256=vocab.sha256)
        folder.mkdir()
        write_draft_vocab(folder, vocab)
    writer = ShardWriter(folder, store, reserve_bytes=0)
    generator = torch.Generator().manual_seed(7)
    for i, length in enumerate(lengths):
        aux = torch.randn(length, len(layer_ids) * HIDDEN, generator=generator)
        token_ids = torch.randint(first_token, first_token + 30, (length,), generator=generator).tolist()
        final_TD = torch.randn(length, HIDDEN, generator=generator).bfloat16()
        sample = CapturedSample(
            sample_id=f"s{i}",
            split="validation" if i >= len(lengths) - 2 else "training",
            source="test",
            token_ids=token_ids,
            prompt_tokens=prompt_tokens,
            states=encode_aux(store.layout, (aux * poison if poisoned == f"s{i}" else aux).bfloat16(), len(layer_ids))
            | encode_teacher(store.layout, _teacher(layout, final_TD, draft_ids)),
        )
        if only is None or sample.sample_id in only:
            writer.write(f"shard-{i}.safetensors", [sample])
    return folder


def write_responses(path: Path, states_folder: Path) -> list[Response]:
    """The answers that a store's samples would have come from."""
    reader, responses = StateReader(states_folder), []
    for entry in reader.samples:
        tokens = reader.read_tokens(entry)
        prompt, answer = (tokens.token_ids_T[m].tolist() for m in (~tokens.loss_mask_T, tokens.loss_mask_T))
        responses.append(
            Response(
                sample_id=entry.sample_id,
                split="training" if entry.split == "training" else "validation",
                source=entry.source,
                prompt_token_ids=prompt,
                response_token_ids=answer,
                finish_reason="stop",
            )
        )
    path.write_text("".join(response.to_line() + "\n" for response in responses))
    return responses
