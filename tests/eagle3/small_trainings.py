"""A training of ten tiny steps, run in this process or as the child that the flow starts."""

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tasks.eagle3.spec import TrainingResult, TrainingSpec
from tasks.eagle3.train import train
from tasks.recipe import to_json
from tasks.system.child import Reporter
from tasks.system.files import sha256_of

STEPS = 10


class WatchingReporter(Reporter):
    """Calls ``after`` when a step was reported, and asks for a stop when it returns True."""

    def __init__(self, path: Path, after: Callable[[int], bool]) -> None:
        super().__init__(path)
        self._after = after

    def progress(self, phase: str, done: float, total: float, unit: str, **figures: Any) -> None:
        super().progress(phase, done, total, unit, **figures)
        if phase == "training":
            self.stop_requested = self._after(int(done))


def run(spec: TrainingSpec, after: Callable[[int], bool] = lambda step: False) -> TrainingResult:
    """Train in this process."""
    return train(spec, WatchingReporter(spec.out_folder.with_suffix(".progress"), after))


def start_child(spec: TrainingSpec) -> "subprocess.Popen[bytes]":
    """Start the training as the flow does."""
    path = spec.out_folder.with_suffix(".json")
    path.write_text(to_json(spec))
    with path.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "tasks.eagle3.train", str(path)], stdout=log, stderr=log)


def newest_step(spec: TrainingSpec) -> int:
    """The step of the newest checkpoint with its facts; 0 without one."""
    return max((int(path.stem[5:]) for path in (spec.out_folder / "checkpoints").glob("step-*.json")), default=0)


def curve(spec: TrainingSpec) -> list[dict[str, str]]:
    """The curve without the one column that depends on the machine."""
    rows = list(csv.DictReader((spec.out_folder / "curve.csv").open()))
    return [{name: value for name, value in row.items() if name != "positions_per_second"} for row in rows]


def best(spec: TrainingSpec) -> dict[str, Tensor]:
    return load_file(spec.out_folder / "best" / "model.safetensors")


def exported_sha256(spec: TrainingSpec) -> dict[str, str]:
    """The checksum of every exported file."""
    folders = [spec.out_folder / "base", spec.out_folder / "best"]
    return {f"{f.name}/{path.name}": sha256_of(path) for f in folders for path in sorted(f.iterdir())}


def with_training(spec: TrainingSpec, **changes: Any) -> TrainingSpec:
    return replace(spec, training=replace(spec.training, **changes))
