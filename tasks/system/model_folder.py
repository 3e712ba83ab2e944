"""A checkpoint folder as files: is it whole, what does its config say, what identifies it."""

import json
from pathlib import Path
from typing import Any

from tasks.errors import BadInput

INDEX_NAME = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The text model's part of ``config.json`` (multimodal configs keep it under ``text_config``).

    Raises:
        BadInput: The folder or its config is missing or unreadable.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(
            f"{folder} is not a checkpoint folder: {path.name} cannot be read ({error.strerror})."
        ) from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}.") from error
    return config.get("text_config", config)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that the checkpoint consists of.

    Raises:
        BadInput: There is no such folder, there are none in it, or a shard that the index names is missing.
    """
    if not folder.is_dir():
        raise BadInput(f"there is no model folder {folder}. Name one with config.json and *.safetensors.")
    index = folder / INDEX_NAME
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if missing := [name for name in names if not (folder / name).exists()]:
            raise BadInput(f"{folder} lacks {len(missing)} of {len(names)} shards that its index names: {missing[0]}.")
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise BadInput(f"{folder} has no *.safetensors and no {INDEX_NAME}: it is not a checkpoint that is used here.")
    return found


def check_checkpoint(folder: Path) -> None:
    """Raise ``BadInput`` unless the folder has a config and all its weights."""
    read_config(folder)
    weight_files(folder)


def folder_identity(folder: Path) -> dict[str, Any]:
    """What identifies a local checkpoint without hashing its weights: its config, and its files' names and sizes."""
    sizes = {path.name: path.stat().st_size for path in weight_files(folder)}
    return {"config": json.loads((folder / "config.json").read_text()), "weights": sizes}
