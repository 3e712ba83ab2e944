"""What is stored for a token, and how many bytes that takes; torch-free, so that the planner can ask.

Shape legend: N tokens of a shard, A auxiliary layers, D hidden size of the target.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.errors import RecipeError

Layout = Literal["bf16"]

TOKEN_IDS = "token_ids"
"""int32 [N]: the exact ids that the states belong to."""
LOSS_MASK = "loss_mask"
"""uint8 [N]: 1 where the token is part of the answer."""
AUX = "aux"
"""bfloat16 [N, A*D]: the auxiliary layers side by side, in the order of the layer ids."""
FINAL = "final"
"""bfloat16 [N, D]: the last state, after the target's final norm."""

DTYPE_BYTES = {"I32": 4, "U8": 1, "BF16": 2}

# Of one sample in the shard's header and once more in the index: its id, split, source, offset,
# length and hash as JSON. An estimate, since ids and sources are strings of the user.
_SAMPLE_RECORD_BYTES = 2 * 230


@dataclass(frozen=True)
class StoreFormat:
    """What every shard of a folder has in common."""

    layout: Layout
    layer_ids: list[int]
    """Auxiliary layers: id j is the residual stream after j decoder layers."""
    hidden_size: int
    final_is_normed: bool = True
    """The last state is the one after the final norm: what the lm_head takes (vLLM's own id n is before it)."""


def tensor_widths(layout: str, hidden_size: int, aux_layers: int) -> dict[str, tuple[str, int]]:
    """The tensors of a shard in file order: name to (safetensors dtype, values a token).

    Raises:
        RecipeError: The layout is not one that the store writes.
    """
    if layout != "bf16":
        raise RecipeError(f"layout {layout!r} is not one that the hidden-state store writes. Layouts: bf16.")
    return {
        TOKEN_IDS: ("I32", 1),
        AUX: ("BF16", aux_layers * hidden_size),
        FINAL: ("BF16", hidden_size),
        LOSS_MASK: ("U8", 1),  # last: it would misalign what follows it
    }


def bytes_per_token(layout: str, hidden_size: int, aux_layers: int) -> int:
    """Bytes that one token takes in a shard: states, token id and loss mask.

    Args:
        layout: What is stored, as in the recipe.
        hidden_size: Width of the target's residual stream.
        aux_layers: How many auxiliary layers are stored beside the final one.

    Raises:
        RecipeError: The layout is not one that the store writes.
    """
    widths = tensor_widths(layout, hidden_size, aux_layers).values()
    return sum(DTYPE_BYTES[dtype] * values for dtype, values in widths)


def expected_store_bytes(layout: str, hidden_size: int, aux_layers: int, tokens: int, samples: int) -> int:
    """Bytes on disk of a whole set of samples: tensors, shard headers and index (tested within 2 %).

    Raises:
        RecipeError: The layout is not one that the store writes.
    """
    return tokens * bytes_per_token(layout, hidden_size, aux_layers) + samples * _SAMPLE_RECORD_BYTES


def token_hash(token_ids: Sequence[int]) -> str:
    """Hex sha256 of token ids as little-endian int32: names a sequence, also across processes."""
    packed = array("i", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.sha256(packed.tobytes()).hexdigest()
