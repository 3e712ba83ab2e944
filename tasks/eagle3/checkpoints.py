"""Resumable checkpoints: written whole, checked before use, the last two kept.

A checkpoint is ``step-<n>.pt`` and, written after it, ``step-<n>.json`` with its size, sha256 and the
fingerprint of the training that it belongs to. One without a matching JSON does not count.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tasks.system.files import PARTIAL_SUFFIX, publish, sha256_of, write_atomically

KEPT = 2


class Checkpoints:
    """The checkpoints of one training."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Use a folder.

        Args:
            folder: Made when missing.
            identity: Everything that shapes the training; checkpoints of another one are not used.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        text = json.dumps(identity, sort_keys=True, default=str)
        self._fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after ``step`` optimizer steps, then drop all but the last two."""
        path = self._folder / f"step-{step:08d}.pt"
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        with partial.open("wb") as out:
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
        for old in self._newest_first()[KEPT:]:
            old.with_suffix(".json").unlink(missing_ok=True)
            old.unlink()

    def load_newest(self) -> dict[str, Any] | None:
        """The state of the newest valid checkpoint, on the CPU, or None."""
        for path in self._newest_first():
            if self._is_valid(path):
                return torch.load(path, map_location="cpu", weights_only=True)
            print(f"{path} is not whole or belongs to another training: it is passed over.", flush=True)
        return None

    def delete(self) -> None:
        """Remove the checkpoints, and the folder if nothing else is in it."""
        for path in [*self._folder.glob("step-*.json"), *self._folder.glob("step-*.pt*")]:
            path.unlink()
        if not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.pt"), reverse=True)

    def _is_valid(self, path: Path) -> bool:
        try:
            facts = json.loads(path.with_suffix(".json").read_text())
            expected = (facts["fingerprint"], facts["size_bytes"], facts["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return expected == (self._fingerprint, path.stat().st_size, sha256_of(path))
