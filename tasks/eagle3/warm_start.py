"""A from-scratch drafter that starts as the target's own last layer instead of as noise.

The fusion passes the latest auxiliary layer through, the block is the target's last decoder layer (its
attention reads the state half of the doubled input), and the final norm is the target's. It drafts the wrong
token at first, but in the target's own language: at equal positions it is ahead of random matrices.

Shapes: D hidden size; A auxiliary layers.
"""

from pathlib import Path

import torch
from torch import Tensor

from tasks.eagle3.target_head import TargetHead, read_tensor, tensor_places

SAME_PLACE = (
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "post_attention_layernorm.weight",
)
DOUBLED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
ENTRY_NORM = "input_layernorm.weight"

# Noise that is left where the target has nothing to give, as a share of a random start's.
TOKEN_HALF_SHARE = 0.5
FUSION_SHARE = 0.05


def start_from_last_layer(weights: dict[str, Tensor], target_folder: Path, target: TargetHead, layers: int) -> bool:
    """Overwrite random weights by the target's last layer, if it is a Llama layer of the drafter's shape.

    Args:
        weights: The drafter's, by name; changed in place.
        target_folder: The target's checkpoint.
        target: Its head.
        layers: Its number of decoder layers.

    Returns:
        Whether it was; with another attention, experts or another width nothing is changed.
    """
    last = _last_layer(target_folder, layers)
    if last is None or not _fits(weights, last):
        return False
    hidden_size = len(target.final_norm_D)
    for name in SAME_PLACE:
        weights[f"midlayer.{name}"].copy_(last[name])
    for name in DOUBLED:
        doubled = weights[f"midlayer.{name}"].mul_(TOKEN_HALF_SHARE)
        doubled[:, hidden_size:] = last[name]
    weights["midlayer.hidden_norm.weight"].copy_(last[ENTRY_NORM])
    weights["norm.weight"].copy_(target.final_norm_D)
    fusion = weights["fc.weight"].mul_(FUSION_SHARE)
    fusion[:, -hidden_size:] += torch.eye(hidden_size)
    return True


def _last_layer(folder: Path, layers: int) -> dict[str, Tensor] | None:
    """The last layer's tensors by their names within it; None when one is absent or the layer has biases."""
    places = tensor_places(folder)
    marker = f"layers.{layers - 1}."
    names = {name.split(marker, 1)[1]: name for name in places if marker in name and "vision" not in name}
    if set(names) != {*SAME_PLACE, *DOUBLED, ENTRY_NORM}:
        return None
    return {short: read_tensor(folder, places, name) for short, name in names.items()}


def _fits(weights: dict[str, Tensor], last: dict[str, Tensor]) -> bool:
    same = all(weights[f"midlayer.{name}"].shape == last[name].shape for name in SAME_PLACE)
    heads = all(len(weights[f"midlayer.{name}"]) == len(last[name]) for name in DOUBLED)
    return same and heads and all(tensor.is_floating_point() for tensor in last.values())
