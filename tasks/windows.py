"""The windows of a run as a chain: what of it is there, and what need not be made again although it is used up.

A window's states are used up once its training is finished, and what a training hands over once the next one is.
So it is decided backwards: what comes after counts, and what led to it may be gone.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from tasks.eagle3.spec import CHECKPOINTS_NAME
from tasks.hidden_states.windows import WHOLE, Window
from tasks.stages import resolved_windows, states_stage, training_stage
from tasks.system.manifest import Manifest, Stage, consume
from tasks.system.run import Product, Run, finished, product_of


@dataclass(frozen=True)
class Link:
    """One window."""

    window: Window
    states: Stage
    training: Stage | None
    """None while it cannot be told which: something before it was never made."""
    is_settled: bool
    """Whether its training need not be made."""


def all_windows(count: int) -> list[Window]:
    """The windows in their order."""
    return [Window(index, count) for index in range(count)]


def _seen(run: Run, stage: Stage) -> Manifest | None:
    """What was made here once, used up or not."""
    return finished(run, stage) or stage.consumed()


def chain(
    run: Run, responses: Product, drafter: Product, seen: Callable[[Run, Stage], Manifest | None] = _seen
) -> list[Link]:
    """Follow the windows through what is on disk.

    Args:
        run: The run.
        responses: The answers.
        drafter: The drafter that training starts from.
        seen: Finds the manifest of a stage that leads on.

    Raises:
        NotChosenYet: Layout and windows of these states are not chosen yet.
    """
    found: list[tuple[Window, Stage, Stage | None]] = []
    previous: Product | None = None
    for window in all_windows(resolved_windows(run, responses, drafter)):
        states = states_stage(run, responses, drafter, window)
        captured = seen(run, states) if window.index == 0 or previous is not None else None
        training = captured and training_stage(run, product_of(states, captured), drafter, previous)
        trained = training and seen(run, training)
        previous = product_of(training, trained) if training and trained else None
        found.append((window, states, training or None))
    links: list[Link] = []
    for window, states, training in reversed(found):
        is_settled = training is not None and (
            training.manifest() is not None or (bool(links) and links[0].is_settled and training.consumed() is not None)
        )
        links.insert(0, Link(window, states, training, is_settled))
    return links


def captured(run: Run, responses: Product, drafter: Product, window: Window = WHOLE) -> Manifest | None:
    """The manifest of states; also of states that a finished training has used up."""
    stage = states_stage(run, responses, drafter, window)
    if (manifest := finished(run, stage)) is not None:
        return manifest
    consumed = stage.consumed()
    return consumed if consumed and chain(run, responses, drafter)[window.index].is_settled else None


def finished_training(
    run: Run, responses: Product, drafter: Product, window: Window, training: Stage
) -> Manifest | None:
    """The manifest of a training; also of one whose hand-over was used up by the next, which is finished."""
    if (manifest := finished(run, training)) is not None:
        return manifest
    consumed = training.consumed()
    return consumed if consumed and chain(run, responses, drafter)[window.index].is_settled else None


def delete_used_up(run: Run, responses: Product, drafter: Product) -> int:
    """Delete what the finished trainings of windows have used up: their states, and what was handed over to them.

    Returns:
        How many bytes were freed.
    """
    links = chain(run, responses, drafter)
    freed = 0
    for link in links:
        if link.is_settled and link.training is not None:
            freed += _delete(link.states)
            shutil.rmtree(link.training.folder / CHECKPOINTS_NAME, ignore_errors=True)
    for link, following in pairwise(links):
        if following.is_settled and link.training is not None:
            freed += _delete(link.training)
    return freed


def _delete(stage: Stage) -> int:
    return consume(stage.folder) if stage.manifest() or stage.consumed() else 0
