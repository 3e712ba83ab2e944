"""Sizes of target and drafter: from the checkpoint when it is there, else from the recipe's snapshot."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tasks.recipe import ModelFacts, Recipe
from tasks.system.model_folder import INDEX_NAME, read_config

CONFIG_NAME = "config.json"
WEIGHTS_TOLERANCE = 0.02
"""A snapshot's weights are a rounded figure."""


def is_there(target_folder: Path) -> bool:
    """Whether the target's own config can be read."""
    return (target_folder / CONFIG_NAME).exists()


def model_facts(recipe: Recipe, target_folder: Path) -> ModelFacts:
    """The target's sizes: from its checkpoint when that is there, else the recipe's snapshot.

    Raises:
        BadInput: The config is unreadable.
    """
    snapshot = recipe.target.snapshot
    if not is_there(target_folder):
        return snapshot
    config = read_config(target_folder)
    weights_bytes, shards = _weights(target_folder, snapshot)
    heads = config.get("num_attention_heads", 0)
    return ModelFacts(
        weights_bytes=weights_bytes,
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        vocab_tokens=config["vocab_size"],
        shards=shards,
        kv_lora_rank=config.get("kv_lora_rank") or 0,
        qk_rope_head_dim=config.get("qk_rope_head_dim") or 0,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or (config["hidden_size"] // heads if heads else 0),
    )


def _weights(folder: Path, snapshot: ModelFacts) -> tuple[int, int]:
    """Bytes and number of the weight files; of a checkpoint that is still being fetched, what it will have."""
    index: dict[str, Any] = {}
    if (folder / INDEX_NAME).exists():
        index = json.loads((folder / INDEX_NAME).read_text())
    names = sorted(set(index["weight_map"].values())) if index else [p.name for p in folder.glob("*.safetensors")]
    if names and all((folder / name).exists() for name in names):
        return sum((folder / name).stat().st_size for name in names), len(names)
    if total := index.get("metadata", {}).get("total_size"):
        return int(total), len(names)
    return snapshot.weights_bytes, len(names) or snapshot.shards


def facts_basis(recipe: Recipe, target_folder: Path) -> str:
    """Where the facts come from, in words."""
    if is_there(target_folder):
        return f"config and index in {target_folder}"
    date = recipe.target.snapshot.date
    return f"the recipe's snapshot{f' of {date}' if date else ''}, because {target_folder} is not there yet"


def snapshot_differences(recipe: Recipe, target_folder: Path) -> list[str]:
    """Fields of the recipe's snapshot that the checkpoint itself contradicts, one sentence each.

    Fields that the snapshot leaves at 0 say nothing.
    """
    if not is_there(target_folder):
        return []
    snapshot, found = recipe.target.snapshot, model_facts(recipe, target_folder)
    sentences = []
    for field in dataclasses.fields(ModelFacts):
        said, is_now = getattr(snapshot, field.name), getattr(found, field.name)
        slack = WEIGHTS_TOLERANCE * is_now if field.name == "weights_bytes" else 0
        if field.name != "date" and said and abs(said - is_now) > slack:
            sentences.append(
                f"the recipe's snapshot of {snapshot.date or 'no date'} says target.snapshot.{field.name} = {said:,}, "
                f"the checkpoint in {target_folder} has {is_now:,}. The plan counts with the checkpoint."
            )
    return sentences


def auxiliary_layers(recipe: Recipe) -> int:
    """How many layers are captured beside the final one."""
    return len(recipe.drafter.layer_ids) or 3


def drafter_parameters(recipe: Recipe, facts: ModelFacts) -> int:
    """Trainable parameters of a drafter of the target's width, generously: MHA, and the MLP at its widest."""
    width, vocab = facts.hidden_size, min(recipe.drafter.draft_vocab_tokens, facts.vocab_tokens)
    intermediate = recipe.drafter.intermediate_size or 3 * width
    attention, fusion = 8 * width * width, auxiliary_layers(recipe) * width * width
    return attention + fusion + 3 * width * intermediate + vocab * width
