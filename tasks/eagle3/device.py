"""The training device: checked before anything is read, and its faults named."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tasks.errors import PermanentError, RecipeError, TransientError


def checked_device(name: str) -> torch.device:
    """The torch device of a recipe.

    Raises:
        RecipeError: This machine or this torch does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RecipeError(
            f"training.device is {name!r}, which torch {torch.__version__} cannot use here "
            f"({str(error).splitlines()[0]}). Set training.device to cpu or to a device that is there."
        ) from error
    return device


@contextmanager
def named_device_faults(pack_tokens: int) -> Iterator[None]:
    """Tell a device that is too small from one that failed.

    Args:
        pack_tokens: The recipe's, for the message.

    Raises:
        PermanentError: The device's memory is too small.
        TransientError: The device failed; training resumes from its last checkpoint.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PermanentError(
            f"the training device has too little memory for packs of {pack_tokens} tokens "
            f"({str(error).splitlines()[0]}). Lower training.pack_tokens and raise training.packs_per_step."
        ) from error
    except torch.AcceleratorError as error:
        raise TransientError(
            f"the training device failed ({str(error).splitlines()[0]}). The next try resumes from the last checkpoint."
        ) from error
