"""What the drafter's child processes are told and what they answer; torch-free, so that the flow can write it."""

from dataclasses import dataclass
from pathlib import Path

from tasks.hidden_states.windows import Window
from tasks.recipe import Drafter, Training

CHECKPOINTS_NAME = "checkpoints"
"""Sub-folder of a training with its resumable checkpoints: no product, removed once the products are listed."""
HAND_OVER_NAME = "hand-over"
"""Sub-folder of a window's training with the one checkpoint that the next window goes on from."""


@dataclass(frozen=True, kw_only=True)
class InitialDrafterSpec:
    """Make the weights of a drafter from scratch, all but what depends on the draft vocabulary."""

    target_folder: Path
    out_folder: Path
    drafter: Drafter


@dataclass(frozen=True, kw_only=True)
class InitialDrafterResult:
    """What was made."""

    parameters: int
    layer_ids: list[int]


@dataclass(frozen=True, kw_only=True)
class WindowedTraining:
    """One window of a training over several slices of the samples."""

    window: Window
    responses_path: Path
    """The answers of all windows."""
    longest_tokens: int
    """Longest sample that was captured, and one more token."""
    previous_folder: Path | None
    """Training of the window before; None in the first."""
    steps_before: int
    """Optimizer steps of all windows before."""


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Train a drafter on captured states and export it."""

    target_folder: Path
    """Checkpoint of the target: embeddings, final norm and lm_head are read from it."""
    base_folder: Path
    """Drafter to start from: downloaded, or made from scratch (then without lm_head, d2t and t2d)."""
    states_folder: Path
    """Hidden-state store."""
    out_folder: Path
    """Gets ``base/`` and ``best/`` (as vLLM loads them), ``checkpoints/`` and ``curve.csv``; in all windows but the
    last ``hand-over/`` instead of the drafters."""
    reserve_bytes: int
    """Free space that no checkpoint and no export may take."""
    drafter: Drafter
    training: Training
    windowed: WindowedTraining | None = None
    """None: the store has all samples."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What the training reached, earlier windows included."""

    steps: int
    positions: int
    """Supervised positions trained on."""
    best_step: int
    """0 is the untouched base."""
    base_acceptance_length: float
    """Simulated, on the validation samples, before training."""
    best_acceptance_length: float
    """Simulated, on the validation samples, of the drafter that is exported, or would be by now."""
    draft_vocab_coverage: float
    """Share of the training answers' tokens that the draft vocabulary holds."""
    files: list[str]
    """Product files, relative to ``out_folder``."""
