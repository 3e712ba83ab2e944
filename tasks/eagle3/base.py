"""The drafter that training starts from, as a checkpoint folder has it.

Shapes: D hidden size; A auxiliary layers; V target vocabulary; W draft vocabulary.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.eagle3.config import CONFIG_NAME, DrafterConfig, drafter_config, read_config
from tasks.eagle3.drafter import Eagle3Drafter
from tasks.eagle3.target_head import TargetHead, read_tensor, tensor_places
from tasks.eagle3.vocab_map import VocabMap, checked_map
from tasks.errors import BadInput

HEAD_NAME = "lm_head.weight"
EMBED_NAME = "embed_tokens.weight"


@dataclass(frozen=True)
class Base:
    """A drafter's checkpoint."""

    config: DrafterConfig
    raw_config: dict[str, Any]
    """The config.json as it is."""
    weights: dict[str, Tensor]
    """By the names of ``Eagle3Drafter``; without lm_head when it was made from scratch."""
    vocab_map: VocabMap | None
    """None when it was made from scratch: the training answers make it."""


def read_base(folder: Path, target: TargetHead, layer_ids: list[int]) -> Base:
    """Read and check a drafter.

    Args:
        folder: Checkpoint with config.json and safetensors weights.
        target: The target, whose embeddings the drafter uses.
        layer_ids: Auxiliary layers to use (vLLM's numbering); empty takes the file's.

    Raises:
        BadInput: The drafter does not fit the target, its vocabulary map is unsound, or a tensor is
            missing, unknown or of another shape than the config says.
    """
    raw_config = read_config(folder)
    config = drafter_config(raw_config, layer_ids, str(folder / CONFIG_NAME))
    vocab_size, hidden_size = target.embed_VD.shape
    if (config.vocab_size, config.hidden_size) != (vocab_size, hidden_size):
        raise BadInput(
            f"{folder} is a drafter for {config.vocab_size} tokens and hidden size {config.hidden_size}, but the "
            f"target has {vocab_size} and {hidden_size}. Name a drafter that was made for this target."
        )
    tensors = _read_tensors(folder)
    _drop_embeddings(tensors, target.embed_VD, folder)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    vocab_map = None
    if HEAD_NAME in tensors:
        vocab_map = checked_map(d2t, t2d, len(tensors[HEAD_NAME]), vocab_size, str(folder))
        config = replace(config, draft_vocab_size=len(vocab_map.target_ids_W))
    elif d2t is not None or t2d is not None:
        raise BadInput(f"{folder} has a vocabulary map but no {HEAD_NAME}. Fetch the whole drafter again.")
    _check_shapes(tensors, config, folder)
    return Base(config, raw_config, tensors, vocab_map)


def with_vocabulary(base: Base, vocab_map: VocabMap, target: TargetHead) -> Base:
    """A from-scratch base given its draft vocabulary; its lm_head starts as the target's rows."""
    weights = {**base.weights, HEAD_NAME: target.lm_head_VD[vocab_map.target_ids_W]}
    config = replace(base.config, draft_vocab_size=len(vocab_map.target_ids_W))
    return Base(config, base.raw_config, weights, vocab_map)


def build_drafter(base: Base) -> Eagle3Drafter:
    """The trainable drafter, with float32 master weights."""
    with torch.device("meta"):
        drafter = Eagle3Drafter(base.config)
    masters = {name: tensor.to(torch.float32, copy=True) for name, tensor in base.weights.items()}
    drafter.load_state_dict(masters, assign=True)
    return drafter


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    places = tensor_places(folder)
    return {_own_name(name): read_tensor(folder, places, name) for name in places}


def _own_name(name: str) -> str:
    """Checkpoints name the one layer ``midlayer`` or ``layers.0``, some behind ``model.``."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _drop_embeddings(tensors: dict[str, Tensor], embed_VD: Tensor, folder: Path) -> None:
    own = tensors.pop(EMBED_NAME, None)
    if own is not None and not (own.shape == embed_VD.shape and torch.equal(own.to(embed_VD.dtype), embed_VD)):
        raise BadInput(
            f"{folder} has embeddings of its own ({tuple(own.shape)}) that are not the target's. Training keeps the "
            f"target's embeddings frozen: remove {EMBED_NAME} from the drafter or use another one."
        )


def _check_shapes(tensors: dict[str, Tensor], config: DrafterConfig, folder: Path) -> None:
    # A from-scratch base has no head yet; any size will do for the comparison.
    with torch.device("meta"):
        wanted = Eagle3Drafter(replace(config, draft_vocab_size=config.draft_vocab_size or 1)).state_dict()
    if HEAD_NAME not in tensors:
        wanted.pop(HEAD_NAME)
    faults = [f"{name} is missing" for name in wanted if name not in tensors]
    faults += [f"{name} is not known" for name in tensors if name not in wanted]
    faults += [
        f"{name} is {tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if faults:
        raise BadInput(
            f"{folder}: the weights do not fit {CONFIG_NAME} with {len(config.layer_ids)} auxiliary layers: "
            f"{'; '.join(faults[:4])}{' ...' if len(faults) > 4 else ''}. Fetch the drafter again or name another one."
        )
