"""A drafter as a folder that vLLM loads with ``--speculative-config '{"method": "eagle3", "model": <folder>}'``.

The embeddings are left out: vLLM then shares the target's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from tasks.eagle3.config import CONFIG_NAME, DrafterConfig, vllm_config
from tasks.eagle3.target_head import SINGLE_NAME
from tasks.eagle3.vocab_map import VocabMap, check_target_ids, checked_map
from tasks.errors import BadProduct
from tasks.system.disk import room_for
from tasks.system.files import write_atomically

EXPORT_FILES = (CONFIG_NAME, SINGLE_NAME)
# The file's header and config.json, generously.
HEADER_BYTES = 64 * 1024
ADVICE = "Free some space and run again: what is there already is kept."


def rounded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are served: bf16, on the CPU."""
    return {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in weights.items()}


def export_drafter(
    folder: Path,
    config: DrafterConfig,
    base_config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    vocab_map: VocabMap,
    reserve_bytes: int,
) -> None:
    """Write a servable folder, config.json last.

    Args:
        folder: Made when missing; an older export in it is replaced.
        config: The drafter's shape.
        base_config: config.json that training started from; its further fields are kept.
        weights: By the names of ``Eagle3Drafter``; written in bf16.
        vocab_map: The draft vocabulary.
        reserve_bytes: Free space that is to be left.

    Raises:
        BadProduct: A weight is not finite.
        BadInput: The vocabulary map is unsound.
        NotEnoughDisk: The export would not leave the reserve, or the volume filled up meanwhile.
    """
    where = f"the export to {folder}"
    check_target_ids(vocab_map.target_ids_W, config.vocab_size, where)
    tensors = {**rounded(weights), **vocab_map.tensors()}
    checked_map(tensors.get("d2t"), tensors.get("t2d"), len(tensors["lm_head.weight"]), config.vocab_size, where)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise BadProduct(f"{name} holds NaN or Inf: {folder} was not written. Lower training.learning_rate.")
    save_checkpoint(folder, tensors, vllm_config(config, base_config), reserve_bytes)


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], config: Mapping[str, Any], reserve_bytes: int) -> None:
    """Write ``model.safetensors`` and then ``config.json``, each whole or not at all.

    Raises:
        NotEnoughDisk: They would not leave the reserve, or the volume filled up meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    need_bytes = sum(tensor.nbytes for tensor in tensors.values()) + HEADER_BYTES
    with room_for(folder, need_bytes, reserve_bytes, f"the drafter in {folder}", ADVICE):
        # Not the library's save_file: its errors do not say why a write failed, and it writes for the owner alone.
        write_atomically(folder / SINGLE_NAME, save(tensors, metadata={"format": "pt"}))
        write_atomically(folder / CONFIG_NAME, json.dumps(config, indent=2))
