"""The few tensors of a target that training needs, read by index from a checkpoint of any size.

Shapes: V target vocabulary; D hidden size.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks.eagle3.config import language_config, read_config
from tasks.errors import BadInput

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True)
class TargetHead:
    """What stands before the first and after the last decoder layer of a target."""

    embed_VD: Tensor
    final_norm_D: Tensor
    lm_head_VD: Tensor


def read_target_head(folder: Path) -> TargetHead:
    """Read embeddings, final norm and lm_head, and nothing else, whatever prefix their names have.

    Raises:
        BadInput: The index, a tensor or the shard that holds it is missing, or the shapes disagree.
    """
    places = tensor_places(folder)
    tied = bool(
        read_config(folder).get(
            "tie_word_embeddings", language_config(read_config(folder)).get("tie_word_embeddings", False)
        )
    )
    embed_VD = read_tensor(folder, places, _name(places, "embed_tokens.weight", folder))
    final_norm_D = read_tensor(folder, places, _name(places, "norm.weight", folder))
    head_names = [name for name in places if name == "lm_head.weight" or name.endswith(".lm_head.weight")]
    if not head_names and not tied:
        raise BadInput(
            f"{folder} has no lm_head.weight and its config does not say tie_word_embeddings. "
            "The teacher needs the target's lm_head: complete the checkpoint."
        )
    lm_head_VD = read_tensor(folder, places, head_names[0]) if head_names else embed_VD
    if embed_VD.shape != lm_head_VD.shape or final_norm_D.shape != embed_VD.shape[1:]:
        raise BadInput(
            f"{folder}: embeddings {tuple(embed_VD.shape)}, lm_head {tuple(lm_head_VD.shape)} and final norm "
            f"{tuple(final_norm_D.shape)} do not fit each other. Quantised heads are not supported."
        )
    return TargetHead(embed_VD, final_norm_D, lm_head_VD)


def tensor_places(folder: Path) -> dict[str, str]:
    """Tensor name to shard file name, of a sharded or a single-file checkpoint.

    Raises:
        BadInput: There is neither an index nor a single file, or it cannot be read.
    """
    if (folder / INDEX_NAME).exists():
        return json.loads((folder / INDEX_NAME).read_text())["weight_map"]
    if not (folder / SINGLE_NAME).exists():
        raise BadInput(f"{folder} has neither {INDEX_NAME} nor {SINGLE_NAME}. Name a folder with safetensors weights.")
    with _opened(folder / SINGLE_NAME) as file:
        return dict.fromkeys(file.keys(), SINGLE_NAME)


def read_tensor(folder: Path, places: dict[str, str], name: str) -> Tensor:
    """One tensor from its shard.

    Raises:
        BadInput: The shard is missing or broken; the message names it and the tensor.
    """
    path = folder / places[name]
    if not path.exists():
        raise BadInput(f"{path} is missing; it holds {name}. Fetch that shard: the index lists it.")
    with _opened(path) as file:
        if name not in file.keys():  # noqa: SIM118 - safe_open is no mapping
            raise BadInput(f"{path} does not hold {name} although the index says so. Fetch that shard again.")
        return file.get_tensor(name)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} is not a whole safetensors file ({error}). Fetch it again.") from error


def _name(places: dict[str, str], suffix: str, folder: Path) -> str:
    """The full name of a tensor of the language model's top level (``model.norm.weight``, not a layer's)."""
    found = [name for name in places if name == suffix or name.endswith(f".{suffix}")]
    top = [name for name in found if not any(part.isdigit() for part in name.split("."))]
    language = [name for name in top if "vision" not in name and "visual" not in name] or top
    if not language:
        raise BadInput(f"{folder} has no tensor that ends in {suffix}, which training needs. Complete the checkpoint.")
    return min(language, key=len)
