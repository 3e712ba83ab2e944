"""The training curve: one row an optimizer step, written as a whole file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from tasks.system.disk import room_for
from tasks.system.files import write_atomically

CURVE_NAME = "curve.csv"
ADVICE = "Free some space and run again: training goes on from the last checkpoint that is whole."

Row = dict[str, float | int | None]


def columns(steps: int) -> list[str]:
    """Names of the columns for a number of unroll steps.

    ``accuracy_k`` is the share of counted drafts that equal the answer's own next token, misses outside the
    draft vocabulary included. ``acceptance_length`` is filled where a validation was made.
    """
    losses = [f"loss_{k}" for k in range(steps)]
    accuracies = [f"accuracy_{k}" for k in range(steps)]
    return [
        "step", "positions", "loss", *losses, *accuracies, "acceptance_length", "learning_rate", "positions_per_second",
    ]  # fmt: skip


def write_curve(folder: Path, rows: Sequence[Row], steps: int) -> None:
    """Write ``curve.csv``; a value that was not measured is an empty cell.

    Raises:
        NotEnoughDisk: The volume is full, the reserve included.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(steps), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    content = text.getvalue().encode()
    with room_for(folder, len(content), 0, f"the training curve in {folder}", ADVICE):
        write_atomically(folder / CURVE_NAME, content)


def read_curve(folder: Path) -> list[Row]:
    """The rows that ``write_curve`` wrote; written again they are the same bytes."""
    with (folder / CURVE_NAME).open(newline="") as source:
        return [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(source)]


def _value(name: str, text: str) -> float | int | None:
    if not text:
        return None
    return int(text) if name in ("step", "positions") else float(text)
