"""In what precision things that must not be rounded to bf16 are computed."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """``x`` as float32, or as float64 where it is that already (tests compare in float64)."""
    return x if x.dtype == torch.float64 else x.float()
