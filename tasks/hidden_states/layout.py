"""What is stored for a token, and how many bytes that takes; torch-free, so that the planner can ask.

=========  ======================================================================================
bf16       auxiliary layers and final state in bfloat16
fp8        the same in float8_e4m3fn, with one bfloat16 scale per token and layer
fp8+topk   auxiliary layers as in fp8; instead of the final state what training takes from it: the teacher's
           highest logits over the draft vocabulary, the log-sum-exps that make probabilities of them, and the
           token that the target itself would choose
=========  ======================================================================================

Shape legend: N tokens of a shard, A auxiliary layers, D hidden size of the target, R logits kept (top-k).
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.errors import RecipeError

Layout = Literal["bf16", "fp8", "fp8+topk"]
LAYOUTS: tuple[Layout, ...] = ("bf16", "fp8", "fp8+topk")

TOP_K = 64
"""Logits of a token that ``fp8+topk`` keeps, unless a recipe says otherwise."""

TOKEN_IDS = "token_ids"
"""int32 [N]: the exact ids that the states belong to."""
LOSS_MASK = "loss_mask"
"""uint8 [N]: 1 where the token is part of the answer."""
AUX = "aux"
"""bfloat16 or float8_e4m3fn [N, A*D]: the auxiliary layers side by side, in the order of the layer ids."""
AUX_SCALE = "aux_scale"
"""bfloat16 [N, A]: what the float8 values of each layer are multiplied by."""
FINAL = "final"
"""bfloat16 or float8_e4m3fn [N, D]: the last state, after the target's final norm."""
FINAL_SCALE = "final_scale"
"""bfloat16 [N, 1]: the same for the final state."""
TOP_IDS = "top_ids"
"""int32 [N, R]: draft ids of the highest logits over the draft vocabulary, highest first."""
TOP_LOGPROBS = "top_logprobs"
"""float16 [N, R]: their logits less ``DRAFT_LSE``. The probable ones are near 0, where float16 is finest: a
logit of 20 by itself would be rounded to 0.016."""
DRAFT_LSE = "draft_lse"
"""float32 [N]: log-sum-exp of the logits over the draft vocabulary."""
FULL_LSE = "full_lse"
"""float32 [N]: log-sum-exp of the logits over the target's whole vocabulary."""
CHOICE = "choice"
"""int32 [N]: the target's id with the highest logit over its whole vocabulary."""

DTYPE_BYTES = {"I32": 4, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}
"""Bytes of a value, by safetensors' own name of its type."""

_VECTORS = {TOKEN_IDS, LOSS_MASK, DRAFT_LSE, FULL_LSE, CHOICE}

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
    top_k: int = 0
    """Logits kept of a token; 0 where the final state is stored instead."""
    vocab_map_sha256: str = ""
    """Of the draft vocabulary that ``top_ids`` refer to (``vocab_map_hash``); empty where there are none."""

    def tensors(self) -> dict[str, tuple[str, int]]:
        """The tensors of a shard, as in ``tensor_widths``."""
        return tensor_widths(self.layout, self.hidden_size, len(self.layer_ids), self.top_k)


def tensor_widths(layout: str, hidden_size: int, aux_layers: int, top_k: int = TOP_K) -> dict[str, tuple[str, int]]:
    """The tensors of a shard in file order: name to (safetensors dtype, values a token).

    Wide types come first, so that no tensor is misaligned in the file, whatever the number of tokens.

    Raises:
        RecipeError: The layout is not one that the store writes.
    """
    A, D = aux_layers, hidden_size
    middle: dict[str, dict[str, tuple[str, int]]] = {
        "bf16": {AUX: ("BF16", A * D), FINAL: ("BF16", D)},
        "fp8": {
            AUX_SCALE: ("BF16", A),
            FINAL_SCALE: ("BF16", 1),
            AUX: ("F8_E4M3", A * D),
            FINAL: ("F8_E4M3", D),
        },
        "fp8+topk": {
            TOP_IDS: ("I32", top_k),
            DRAFT_LSE: ("F32", 1),
            FULL_LSE: ("F32", 1),
            CHOICE: ("I32", 1),
            AUX_SCALE: ("BF16", A),
            TOP_LOGPROBS: ("F16", top_k),
            AUX: ("F8_E4M3", A * D),
        },
    }
    if layout not in middle:
        raise RecipeError(
            f"layout {layout!r} is not one that the hidden-state store writes. Layouts: {', '.join(LAYOUTS)}."
        )
    return {TOKEN_IDS: ("I32", 1), **middle[layout], LOSS_MASK: ("U8", 1)}


def tensor_shape(name: str, tokens: int, values: int) -> list[int]:
    """Shape in the file of a tensor that has so many values a token."""
    return [tokens] if name in _VECTORS else [tokens, values]


def bytes_per_token(layout: str, hidden_size: int, aux_layers: int, top_k: int = TOP_K) -> int:
    """Bytes that one token takes in a shard: states or top logits, token id and loss mask.

    Args:
        layout: What is stored, as in the recipe.
        hidden_size: Width of the target's residual stream.
        aux_layers: How many auxiliary layers are stored.
        top_k: Logits kept of a token; matters to ``fp8+topk`` alone.

    Raises:
        RecipeError: The layout is not one that the store writes.
    """
    widths = tensor_widths(layout, hidden_size, aux_layers, top_k).values()
    return sum(DTYPE_BYTES[dtype] * values for dtype, values in widths)


def expected_store_bytes(
    layout: str, hidden_size: int, aux_layers: int, tokens: int, samples: int, top_k: int = TOP_K
) -> int:
    """Bytes on disk of a whole set of samples: tensors, shard headers and index (tested within 2 %).

    Raises:
        RecipeError: The layout is not one that the store writes.
    """
    return tokens * bytes_per_token(layout, hidden_size, aux_layers, top_k) + samples * _SAMPLE_RECORD_BYTES


def vocab_map_hash(target_ids: Sequence[int]) -> str:
    """Hex sha256 that names a draft vocabulary: its target ids in the order of the draft ids."""
    return token_hash(target_ids)


def token_hash(token_ids: Sequence[int]) -> str:
    """Hex sha256 of token ids as little-endian int32: names a sequence, also across processes."""
    packed = array("i", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.sha256(packed.tobytes()).hexdigest()
