"""What the capture must know of the target before it is loaded: its config.json; torch-free."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tasks.errors import BadInput, RecipeError


@dataclass(frozen=True)
class TargetShape:
    """The language model's sizes."""

    decoder_layers: int
    hidden_size: int
    vocab_tokens: int


def read_target_shape(folder: Path) -> TargetShape:
    """The sizes in a checkpoint's config.json, also where a multimodal config nests them in ``text_config``.

    Raises:
        BadInput: There is no config.json, or it lacks a size.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path}: a checkpoint's config.json was needed ({error}). Check the target's folder."
        ) from error
    text = config.get("text_config", config)
    try:
        return TargetShape(text["num_hidden_layers"], text["hidden_size"], text["vocab_size"])
    except KeyError as error:
        raise BadInput(
            f"{path} must name num_hidden_layers, hidden_size and vocab_size, at the top or in text_config; "
            f"{error.args[0]} is missing."
        ) from error


def check_layer_ids(layer_ids: list[int], shape: TargetShape) -> None:
    """Whether every id names the output of a decoder layer.

    Raises:
        RecipeError: The ids are empty, not strictly increasing, or out of range.
    """
    in_range = all(1 <= j <= shape.decoder_layers for j in layer_ids)
    if not layer_ids or not in_range or any(a >= b for a, b in pairwise(layer_ids)):
        raise RecipeError(
            f"layer ids must be strictly increasing and lie in 1..{shape.decoder_layers} (id j is the residual "
            f"stream after j decoder layers of the target's {shape.decoder_layers}), found {layer_ids}. "
            "Correct drafter.layer_ids."
        )
