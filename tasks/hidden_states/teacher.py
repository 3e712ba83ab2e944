"""What the target says about the next token at every position: its final state, or its highest logits.

Training takes either and does not care which: ``FinalStates`` become logits through the target's frozen lm_head,
``TopLogits`` are logits already.

Shape legend: T tokens, D hidden size, R logits kept (top-k).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


class _Rows:
    """A dataclass of tensors with a row for every token."""

    def __len__(self) -> int:
        return len(self._tensors()[0])

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return self._each(lambda tensor: tensor[rows])

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Several, one after the other."""
        return cls(*(torch.cat(tensors) for tensors in zip(*(part._tensors() for part in parts), strict=True)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(*map(change, self._tensors()))

    def _tensors(self) -> list[Tensor]:
        return list(vars(self).values())


@dataclass(frozen=True)
class FinalStates(_Rows):
    """The last states, after the target's final norm."""

    final_TD: Tensor


@dataclass(frozen=True)
class TopLogits(_Rows):
    """The highest logits over the draft vocabulary and what makes probabilities of them."""

    ids_TR: Tensor
    """Draft ids, int64, the most probable first."""
    logprobs_TR: Tensor
    """Their logits less ``draft_lse_T``: log-probabilities of the teacher restricted to the draft vocabulary."""
    draft_lse_T: Tensor
    """Log-sum-exp of the logits over the draft vocabulary."""
    full_lse_T: Tensor
    """Log-sum-exp of the logits over the whole vocabulary."""
    choice_T: Tensor
    """The target's own choice: the id, int64, with the highest logit over its whole vocabulary."""

    @property
    def logits_TR(self) -> Tensor:  # noqa: N802 - the shape suffix
        """The logits themselves."""
        return self.logprobs_TR + self.draft_lse_T[:, None]


Teacher = FinalStates | TopLogits


def cat_teachers(parts: Sequence[Teacher]) -> Teacher:
    """Teachers of one kind, one after the other."""
    return type(parts[0]).cat(parts)  # type: ignore[arg-type]
