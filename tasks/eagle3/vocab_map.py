"""The draft vocabulary: which W of the target's V tokens the drafter can draft.

A file holds it twice: ``d2t`` (int64 [W], *offsets*: target id = draft id + d2t[draft id]) and ``t2d``
(bool [V], True for tokens of the draft vocabulary). With W = V both are absent.

Shapes: V target vocabulary; W draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.errors import BadInput


@dataclass(frozen=True)
class VocabMap:
    """The target ids of the draft vocabulary, increasing, int64 [W]."""

    target_ids_W: Tensor
    vocab_size: int

    @property
    def whole(self) -> bool:
        """Whether every token can be drafted."""
        return len(self.target_ids_W) == self.vocab_size

    def tensors(self) -> dict[str, Tensor]:
        """``d2t`` and ``t2d`` as the file has them; nothing when every token can be drafted."""
        if self.whole:
            return {}
        t2d_V = torch.zeros(self.vocab_size, dtype=torch.bool)
        t2d_V[self.target_ids_W] = True
        return {"d2t": self.target_ids_W - torch.arange(len(self.target_ids_W)), "t2d": t2d_V}

    def coverage(self, counts_V: Tensor) -> float:
        """Share of counted tokens that the draft vocabulary holds."""
        total = int(counts_V.sum())
        return int(counts_V[self.target_ids_W].sum()) / total if total else 0.0


def most_frequent(counts_V: Tensor, draft_vocab_tokens: int) -> VocabMap:
    """The map of the most frequent tokens; of equally frequent ones the lower ids.

    Args:
        counts_V: How often each token occurs in the training answers.
        draft_vocab_tokens: Size W; the whole vocabulary when it is at least V.
    """
    vocab_size = len(counts_V)
    order_V = torch.argsort(counts_V, descending=True, stable=True)
    return VocabMap(order_V[: min(draft_vocab_tokens, vocab_size)].sort().values, vocab_size)


def checked_map(d2t: Tensor | None, t2d: Tensor | None, draft_size: int, vocab_size: int, where: str) -> VocabMap:
    """The map in a checkpoint, if it is sound.

    Args:
        d2t: Offsets, or None when the file has none.
        t2d: Mask, or None when the file has none.
        draft_size: W, from the rows of the file's lm_head.
        vocab_size: V, of the target.
        where: The file, for messages.

    Raises:
        BadInput: The map is missing, or vLLM would silently draft other tokens with it; says what was found.
    """
    if draft_size == vocab_size and d2t is None and t2d is None:
        return VocabMap(torch.arange(vocab_size), vocab_size)
    if d2t is None or t2d is None:
        found = ", ".join(name for name, tensor in (("d2t", d2t), ("t2d", t2d)) if tensor is not None) or "neither"
        raise _refused(where, f"needs both d2t and t2d for {draft_size} of {vocab_size} tokens, found {found}")
    _check_forms(d2t, t2d, draft_size, vocab_size, where)
    ids_W = d2t.long() + torch.arange(draft_size)
    check_target_ids(ids_W, vocab_size, where)
    if int(t2d.sum()) != draft_size:
        raise _refused(where, f"has {int(t2d.sum())} tokens in t2d and {draft_size} rows in lm_head")
    if not bool(t2d[ids_W].all()):
        zero = "d2t is all zero, but t2d does not name the first ids" if not bool(d2t.any()) else "d2t and t2d disagree"
        raise _refused(where, f"holds two different maps: {zero}")
    return VocabMap(ids_W, vocab_size)


def check_target_ids(ids_W: Tensor, vocab_size: int, where: str) -> None:
    """Raise ``BadInput`` unless the target ids of a draft vocabulary are within the target's and increase."""
    low, high = int(ids_W.min()), int(ids_W.max())
    if low < 0 or high >= vocab_size:
        raise _refused(where, f"maps to target ids {low}..{high}, outside 0..{vocab_size - 1}")
    if not bool((ids_W[1:] > ids_W[:-1]).all()):
        first = int((ids_W[1:] <= ids_W[:-1]).nonzero()[0])
        pair = f"{int(ids_W[first])} then {int(ids_W[first + 1])}"
        raise _refused(where, f"maps draft ids {first} and {first + 1} to {pair}; target ids must increase")


def _check_forms(d2t: Tensor, t2d: Tensor, draft_size: int, vocab_size: int, where: str) -> None:
    if d2t.shape != (draft_size,):
        raise _refused(where, f"has d2t of shape {tuple(d2t.shape)}, but lm_head has {draft_size} rows")
    if t2d.shape != (vocab_size,):
        raise _refused(where, f"has t2d of shape {tuple(t2d.shape)}, but the target has {vocab_size} tokens")
    if d2t.dtype not in (torch.int64, torch.int32) or t2d.dtype not in (torch.bool, torch.uint8, torch.int64):
        raise _refused(where, f"has d2t of {d2t.dtype} and t2d of {t2d.dtype}; they must be int64 and bool")


def _refused(where: str, what: str) -> BadInput:
    return BadInput(
        f"{where} {what}. The drafter would draft wrong tokens with good-looking training figures. "
        "Use the d2t and t2d that the drafter was trained with."
    )
