"""What a window's training leaves to the next: all that a checkpoint holds, so that the two are one training.

The curve is beside it, as everywhere: it has rates in it, and the same weights, trained again, are the same product.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.eagle3.checkpoints import Checkpoints
from tasks.eagle3.curve import read_curve
from tasks.eagle3.spec import HAND_OVER_NAME
from tasks.errors import BadProduct

State = dict[str, Any]


def write_hand_over(folder: Path, state: State, identity: Mapping[str, Any], reserve_bytes: int) -> list[str]:
    """Write the state; the curve is written by the caller.

    Args:
        folder: The window's training.
        state: From the trainer.
        identity: What both windows have in common.
        reserve_bytes: Free space that it may not take.

    Returns:
        The files, relative to ``folder``.

    Raises:
        NotEnoughDisk: It would not leave the reserve, or the volume filled up meanwhile.
    """
    progress = {**state["progress"], "curve": []}
    step = progress["step"]
    Checkpoints(folder / HAND_OVER_NAME, identity, reserve_bytes).save(step, {**state, "progress": progress})
    return [f"{HAND_OVER_NAME}/step-{step:08d}{suffix}" for suffix in (".json", ".pt")]


def read_hand_over(folder: Path, identity: Mapping[str, Any]) -> State:
    """The state that the window before ended with.

    Raises:
        BadProduct: It is not whole, or belongs to another training.
    """
    state = Checkpoints(folder / HAND_OVER_NAME, identity, reserve_bytes=0).load_newest()
    if state is None:
        raise BadProduct(
            f"{folder / HAND_OVER_NAME} has no whole checkpoint of this training to go on from. Delete {folder} and "
            "run again: the windows before are captured and trained again."
        )
    state["progress"]["curve"] = read_curve(folder)
    return state
