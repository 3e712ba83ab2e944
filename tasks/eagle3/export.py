"""A drafter as a folder that vLLM loads with ``--speculative-config '{"method": "eagle3", "model": <folder>}'``.

The embeddings are left out: vLLM then shares the target's.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.eagle3.config import CONFIG_NAME, DrafterConfig, vllm_config
from tasks.eagle3.target_head import SINGLE_NAME
from tasks.eagle3.vocab_map import VocabMap, checked_map
from tasks.errors import BadProduct
from tasks.system.files import PARTIAL_SUFFIX, publish, write_atomically

EXPORT_FILES = (CONFIG_NAME, SINGLE_NAME)


def rounded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are served: bf16, on the CPU."""
    return {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in weights.items()}


def export_drafter(
    folder: Path,
    config: DrafterConfig,
    base_config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    vocab_map: VocabMap,
) -> None:
    """Write a servable folder, config.json last.

    Args:
        folder: Made when missing; an older export in it is replaced.
        config: The drafter's shape.
        base_config: config.json that training started from; its further fields are kept.
        weights: By the names of ``Eagle3Drafter``; written in bf16.
        vocab_map: The draft vocabulary.

    Raises:
        BadProduct: A weight is not finite.
        BadInput: The vocabulary map is unsound.
    """
    tensors = {**rounded(weights), **vocab_map.tensors()}
    head_rows = len(tensors["lm_head.weight"])
    checked_map(tensors.get("d2t"), tensors.get("t2d"), head_rows, config.vocab_size, f"the export to {folder}")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise BadProduct(f"{name} holds NaN or Inf: {folder} was not written. Lower training.learning_rate.")
    save_weights(folder, tensors)
    text = json.dumps(vllm_config(config, base_config), indent=2)
    write_atomically(folder / CONFIG_NAME, text)


def save_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write ``model.safetensors`` whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (SINGLE_NAME + PARTIAL_SUFFIX)
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # the library writes for the owner alone; a server may run as someone else
    with partial.open("rb") as written:
        os.fsync(written.fileno())
    publish(partial, folder / SINGLE_NAME)
