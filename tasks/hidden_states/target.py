"""What the capture must know of the target before it is loaded: its config.json; torch-free."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tasks.errors import BadInput, RecipeError
from tasks.system.model_folder import read_config


@dataclass(frozen=True)
class TargetShape:
    """The language model's sizes."""

    decoder_layers: int
    hidden_size: int
    vocab_tokens: int


def read_target_shape(folder: Path) -> TargetShape:
    """The sizes in a checkpoint's config.json, also where a multimodal config nests them.

    Raises:
        BadInput: There is no config.json, or it lacks a size.
    """
    config = read_config(folder)
    try:
        return TargetShape(config["num_hidden_layers"], config["hidden_size"], config["vocab_size"])
    except KeyError as error:
        raise BadInput(
            f"{folder / 'config.json'} must name num_hidden_layers, hidden_size and vocab_size, at the top or in "
            f"text_config; {error.args[0]} is missing."
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
