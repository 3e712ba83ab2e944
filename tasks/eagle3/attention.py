"""Attention of the training-time test: many queries on step-0 keys, and a few keys of their own.

At step k the query of position t sees the step-0 keys of the positions up to t in its document, and the
keys that its own drafts of steps 1..k left (EAGLE-3, arXiv 2503.01840, section 3.2: the mask whose
off-diagonal part is empty). So a step's scores are T wide, never K x T, and own scores are K wide.

Shapes: N query rows; T step-0 positions of the pack; C rows of one block; S step-0 keys of one block;
H query heads; J key/value heads; G = H/J query heads a key head; E head width; k own steps so far.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tasks.eagle3.precision import wide

# Rows of one block: small blocks skip more of the keys of other documents, large ones start fewer kernels.
CPU_BLOCK_ROWS = 128
GPU_BLOCK_ROWS = 512

# The scores of a long pack are gigabytes on a GPU: there they are computed again in the backward pass.
RECOMPUTING_DEVICES = ("cuda",)


def training_time_attention(
    queries_NHE: Tensor,
    keys_JTE: Tensor,
    values_JTE: Tensor,
    own_keys: list[Tensor],
    own_values: list[Tensor],
    rows_N: Tensor,
    starts_N: Tensor,
    blocks: list[tuple[int, int, int, int]],
) -> Tensor:
    """Attend to the step-0 keys of the own document and to the own later keys, jointly normalised.

    Args:
        queries_NHE: Rotated queries of the rows at this step.
        keys_JTE: Rotated step-0 keys of every position of the pack.
        values_JTE: Step-0 values of every position of the pack.
        own_keys: For each step 1..k the rows' rotated keys, [N, J, E].
        own_values: For each step 1..k the rows' values, [N, J, E].
        rows_N: Position in the pack of each row, increasing.
        starts_N: Position in the pack at which the row's document starts.
        blocks: From ``attention_blocks``.

    Returns:
        [N, H, E], in the dtype of the values.
    """
    heads, key_heads = queries_NHE.shape[1], keys_JTE.shape[0]
    grouped_JGNE = queries_NHE.transpose(0, 1).unflatten(0, (key_heads, heads // key_heads))
    own_keys_JNkE = _stacked(own_keys)
    own_values_JNkE = _stacked(own_values)
    outputs = []
    for first, last, key_first, key_last in blocks:
        arguments = (
            grouped_JGNE[:, :, first:last],
            keys_JTE[:, key_first:key_last],
            values_JTE[:, key_first:key_last],
            None if own_keys_JNkE is None else own_keys_JNkE[:, first:last],
            None if own_values_JNkE is None else own_values_JNkE[:, first:last],
            rows_N[first:last] - key_first,
            starts_N[first:last] - key_first,
        )
        if queries_NHE.device.type in RECOMPUTING_DEVICES and torch.is_grad_enabled():
            outputs.append(checkpoint(_block, *arguments, use_reentrant=False))
        else:
            outputs.append(_block(*arguments))
    return torch.cat(outputs, dim=2).flatten(0, 1).transpose(0, 1)


def attention_blocks(rows_N: Tensor, starts_N: Tensor, block_rows: int) -> list[tuple[int, int, int, int]]:
    """Cut the rows into blocks; each needs the keys from its first document's start to its last row.

    Returns:
        For each block: first row, row after the last, first key, key after the last.
    """
    rows, starts = rows_N.tolist(), starts_N.tolist()
    blocks = []
    for first in range(0, len(rows), block_rows):
        last = min(first + block_rows, len(rows))
        blocks.append((first, last, starts[first], rows[last - 1] + 1))
    return blocks


def _stacked(own: list[Tensor]) -> Tensor | None:
    return torch.stack(own, dim=2).transpose(0, 1) if own else None


def _block(
    queries_JGCE: Tensor,
    keys_JSE: Tensor,
    values_JSE: Tensor,
    own_keys_JCkE: Tensor | None,
    own_values_JCkE: Tensor | None,
    rows_C: Tensor,
    starts_C: Tensor,
) -> Tensor:
    key_heads, groups, rows, width = queries_JGCE.shape
    keys = keys_JSE.shape[1]
    key_S = torch.arange(keys, device=rows_C.device)
    hidden_CS = (key_S > rows_C[:, None]) | (key_S < starts_C[:, None])
    folded = queries_JGCE.reshape(key_heads, groups * rows, width)
    scores = wide(folded @ keys_JSE.transpose(1, 2)).view(key_heads, groups, rows, keys)
    scores = (scores * width**-0.5).masked_fill(hidden_CS, -torch.inf)
    if own_keys_JCkE is None or own_values_JCkE is None:
        shares = scores.softmax(-1).to(values_JSE.dtype)
        return (shares.view(key_heads, -1, keys) @ values_JSE).view(queries_JGCE.shape)
    # One query against k keys of its own is a row-wise product, not a matrix product.
    own = (wide(queries_JGCE)[:, :, :, None] * wide(own_keys_JCkE)[:, None]).sum(-1) * width**-0.5
    shares = torch.cat([scores, own], dim=-1).softmax(-1)
    old = shares[..., :keys].to(values_JSE.dtype).reshape(key_heads, -1, keys) @ values_JSE
    new = (shares[..., keys:, None] * wide(own_values_JCkE)[:, None]).sum(-2)
    return old.view(queries_JGCE.shape) + new.to(values_JSE.dtype)
