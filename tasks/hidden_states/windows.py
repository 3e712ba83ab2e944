"""Windows: all samples cut into slices whose states are captured, trained on and deleted one after the other.

Which slice a training sample is in depends on the usable answers and the number of slices alone. The order is by
a hash of the id, so that no slice is of another kind than the rest. The held-out samples are in every window: what
the checkpoints are judged by stays the same. Torch-free.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tasks.errors import RecipeError
from tasks.system.responses import Response


@dataclass(frozen=True)
class Window:
    """One of the slices."""

    index: int
    """From 0."""
    count: int
    """1: all samples at once."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all there is."""
        return self.count == 1

    @property
    def is_last(self) -> bool:
        """Whether no other follows."""
        return self.index == self.count - 1


WHOLE = Window(0, 1)


def slice_numbers(lengths_tokens: Mapping[str, int], count: int) -> dict[str, int]:
    """Of every training sample, its slice; slices have about as many tokens each, and none is empty.

    Args:
        lengths_tokens: Of every training sample.
        count: Slices.

    Raises:
        RecipeError: There are fewer samples than slices.
    """
    if len(lengths_tokens) < count:
        raise RecipeError(
            f"{len(lengths_tokens)} training samples cannot be cut into {count} windows. Lower extraction.windows."
        )
    total_tokens = sum(lengths_tokens.values())
    numbers: dict[str, int] = {}
    number, before_tokens = -1, 0
    for place, sample_id in enumerate(sorted(lengths_tokens, key=_rank)):
        by_tokens = before_tokens * count // total_tokens
        left = len(lengths_tokens) - place
        # A sample longer than a slice must not skip one, and each slice that is left gets at least one.
        number = max(min(by_tokens, number + 1), count - left)
        numbers[sample_id] = number
        before_tokens += lengths_tokens[sample_id]
    return numbers


def in_window(samples: Sequence[Response], window: Window) -> list[Response]:
    """The samples whose states a window has, in their order.

    Args:
        samples: All that can be used.
        window: Which window.

    Raises:
        RecipeError: There are fewer training samples than windows.
    """
    if window.is_whole:
        return list(samples)
    numbers = slice_numbers(_lengths(samples), window.count)
    return [r for r in samples if numbers.get(r.sample_id, window.index) == window.index]


def size_of_window(samples: Iterable[Response], window: Window) -> tuple[int, int]:
    """Samples and tokens of a window, the few that cannot be used included."""
    lengths: dict[str, int] = {}
    held_out_tokens = []
    for sample in samples:
        if sample.split == "training":
            lengths[sample.sample_id] = sample.length_tokens
        else:
            held_out_tokens.append(sample.length_tokens)
    numbers = slice_numbers(lengths, window.count)
    tokens = [lengths[sample_id] for sample_id, number in numbers.items() if number == window.index]
    return len(tokens) + len(held_out_tokens), sum(tokens) + sum(held_out_tokens)


def _lengths(samples: Iterable[Response]) -> dict[str, int]:
    return {r.sample_id: r.length_tokens for r in samples if r.split == "training"}


def _rank(sample_id: str) -> bytes:
    return hashlib.sha256(sample_id.encode()).digest()
