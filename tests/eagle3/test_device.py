"""The training device."""

import pytest
import torch

from tasks.eagle3.device import checked_device, named_device_faults
from tasks.errors import PermanentError, RecipeError, TransientError


def test_a_device_that_is_there_is_taken():
    assert checked_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "warp"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(RecipeError, match=f"training.device is '{name}'"):
        checked_device(name)


def test_too_little_memory_is_permanent():
    with pytest.raises(PermanentError, match=r"Lower training\.pack_tokens"), named_device_faults(4096):
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_failing_device_is_worth_another_try():
    with pytest.raises(TransientError, match="resumes from the last checkpoint"), named_device_faults(4096):
        raise torch.AcceleratorError("CUDA error: an illegal memory access", 700)
