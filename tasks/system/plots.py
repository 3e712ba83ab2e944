"""The charts of a run, as PNG files."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tasks.system.acceptance import Arm

BASE_COLOUR, TRAINED_COLOUR = "#9aa5b1", "#1f6feb"
SIZE_INCHES = (6.4, 3.6)


def plot_acceptance(arms: list[Arm], path: Path) -> None:
    """Bars of acceptance by draft position, a group a position, a colour a drafter."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        shares = arm.acceptance_by_position
        places = [position + (number - (len(arms) - 1) / 2) * width for position in range(len(shares))]
        colour = TRAINED_COLOUR if arm.name == "trained" else BASE_COLOUR
        bars = axes.bar(places, shares, width, color=colour, label=f"{arm.name}: length {arm.acceptance_length:.2f}")
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set(ylim=(0, 1), xlabel="position in the draft", ylabel="share of drafts accepted up to here")
    axes.set_xticks(range(len(arms[0].accepted_at)), [str(i + 1) for i in range(len(arms[0].accepted_at))])
    axes.set_title("Acceptance by draft position, counted by vLLM")
    axes.legend(frameon=False)
    _save(figure, path)


def plot_training(curve_path: Path, path: Path) -> None:
    """Training loss and simulated acceptance length over optimizer steps, from the trainer's ``curve.csv``."""
    with curve_path.open() as source:
        rows = list(csv.DictReader(source))
    figure, (loss_axes, length_axes) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    loss = [(int(row["step"]), float(row["loss"])) for row in rows if row["loss"]]
    length = [(int(row["step"]), float(row["acceptance_length"])) for row in rows if row["acceptance_length"]]
    loss_axes.plot(*zip(*loss, strict=True), color=BASE_COLOUR, linewidth=1)
    loss_axes.set(xlabel="step", ylabel="training loss", title="Loss")
    length_axes.plot(*zip(*length, strict=True), color=TRAINED_COLOUR, marker="o")
    length_axes.set(xlabel="step", ylabel="tokens a verification step", title="Simulated acceptance length, held out")
    for axes in (loss_axes, length_axes):
        axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
