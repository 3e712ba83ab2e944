"""Which of the target's layers feed the drafter, and the two ways that files number them; torch-free.

Everywhere in this project id j is the residual stream after j decoder layers (0 = embeddings, n = before
the final norm), which is vLLM's numbering. SGLang and SpecForge number the same tensor j - 1. The two
conversions live here and are called only where a config.json is read or written.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tasks.errors import BadInput

KEY = "eagle_aux_hidden_state_layer_ids"


def default_layer_ids(target_layers: int) -> list[int]:
    """An early, a middle and a late layer, as the EAGLE-3 authors' releases choose them.

    Below seven layers that choice would repeat one; then they are spread out.
    """
    if target_layers < 7:
        return [1, max(2, target_layers // 2), max(3, target_layers - 1)]
    return [2, target_layers // 2, target_layers - 3]


def to_sglang(layer_ids: Sequence[int]) -> list[int]:
    """vLLM's numbering to SGLang's."""
    return [layer_id - 1 for layer_id in layer_ids]


def check_layer_ids(layer_ids: Sequence[int], target_layers: int, where: str) -> None:
    """Refuse ids that vLLM would die on, sort silently, or silently repeat.

    Args:
        layer_ids: vLLM's numbering.
        target_layers: Decoder layers of the target.
        where: What named the ids, for the message.

    Raises:
        BadInput: An id is outside 1..target_layers, or they do not strictly increase.
    """
    inside = all(0 < layer_id <= target_layers for layer_id in layer_ids)
    increasing = all(a < b for a, b in pairwise(layer_ids))
    if not layer_ids or not inside or not increasing:
        raise BadInput(
            f"{where}: layer ids must be strictly increasing and within 1..{target_layers} "
            f"(id j = residual stream after j decoder layers), found {list(layer_ids)}. "
            f"Set drafter.layer_ids, for example to {default_layer_ids(target_layers)}."
        )


def read_layer_ids(config: Mapping[str, Any], where: str) -> list[int]:
    """The ids in a drafter's config.json, in vLLM's numbering.

    The key at top level is vLLM's. A nested one alone is taken as vLLM takes it, unshifted; in a file
    with both, the nested one is SGLang's and is not read.

    Raises:
        BadInput: Neither is there, or it is not a list of integers.
    """
    nested = config.get("eagle_config") or {}
    found = config.get(KEY) or nested.get(KEY)
    if not isinstance(found, list) or not all(isinstance(layer_id, int) for layer_id in found):
        raise BadInput(
            f"{where} has no usable {KEY} (top level or in eagle_config), found {found!r}. "
            "Set drafter.layer_ids to the layers that this drafter was trained on."
        )
    return found
