"""Resumable checkpoints: written whole, checked before use, the last two kept.

A checkpoint is ``step-<n>.pt`` and, written after it, ``step-<n>.json`` with its size, sha256 and the
fingerprint of the training that it belongs to. One without a matching JSON does not count: it is passed
over when the newest is looked for, and removed by the next save.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.system.disk import room_for
from tasks.system.files import PARTIAL_SUFFIX, publish, removed_on_failure, sha256_of, write_atomically

KEPT = 2
# The archive's own names and directories, generously.
ARCHIVE_BYTES = 64 * 1024
ADVICE = "Free some space and run again: training goes on from the last checkpoint that is whole."


class Checkpoints:
    """The checkpoints of one training."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], reserve_bytes: int) -> None:
        """Use a folder, and free it from what a killed process left half written.

        Args:
            folder: Made when missing.
            identity: Everything that shapes the training; checkpoints of another one are not used.
            reserve_bytes: Free space that no checkpoint may take.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for half in folder.glob(f"*{PARTIAL_SUFFIX}"):
            half.unlink()
        self._folder, self._reserve_bytes = folder, reserve_bytes
        text = json.dumps(identity, sort_keys=True, default=str)
        self._fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after ``step`` optimizer steps, then drop all but the last two that count.

        Raises:
            NotEnoughDisk: It would not leave the reserve, or the volume filled up meanwhile; the earlier
                checkpoints are as they were.
        """
        path = self._folder / f"step-{step:08d}.pt"
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        need_bytes = sum(tensor.nbytes for tensor in _tensors(state)) + ARCHIVE_BYTES
        with room_for(self._folder, need_bytes, self._reserve_bytes, f"the checkpoint after step {step}", ADVICE):
            with removed_on_failure(partial), partial.open("wb") as out:
                torch.save(dict(state), out)
                out.flush()
                os.fsync(out.fileno())
            facts = {
                "step": step,
                "size_bytes": partial.stat().st_size,
                "sha256": sha256_of(partial),
                "fingerprint": self._fingerprint,
            }
            publish(partial, path)
            write_atomically(path.with_suffix(".json"), json.dumps(facts))
        self._prune()

    def load_newest(self) -> dict[str, Any] | None:
        """The state of the newest valid checkpoint, on the CPU, or None."""
        for path in self._newest_first():
            if self._is_valid(path):
                return torch.load(path, map_location="cpu", weights_only=True)
            print(f"{path} is not whole or belongs to another training: it is passed over.", flush=True)
        return None

    def _prune(self) -> None:
        """Drop what does not count, so that it pushes nothing out, and all but the newest of what does."""
        counting = [path for path in self._newest_first() if self._promised_sha256(path) is not None]
        for path in set(self._newest_first()) - set(counting[:KEPT]):
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink()

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.pt"), reverse=True)

    def _is_valid(self, path: Path) -> bool:
        return self._promised_sha256(path) == sha256_of(path)

    def _promised_sha256(self, path: Path) -> str | None:
        """The checksum that a checkpoint of this training and of the right size must have; None for any other."""
        try:
            facts = json.loads(path.with_suffix(".json").read_text())
            found = (facts["fingerprint"], facts["size_bytes"])
            return str(facts["sha256"]) if found == (self._fingerprint, path.stat().st_size) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a nested state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _tensors(inner)
