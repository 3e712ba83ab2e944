"""What is wrong with answers that are no fault of a request: cut short, thinking only, or turning in a loop.

A drafter that is trained on them learns them, so their share is watched while there is still time to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.errors import BadProduct
from tasks.recipe import Inference
from tasks.system.responses import Response

GRAM_TOKENS = 4
LOOP_TAIL_TOKENS = 256
LEAST_LOOP_TOKENS = 64
LOOP_DISTINCT_SHARE = 0.25
"""Text has nearly as many different 4-grams as 4-grams; a loop of a sentence has a tenth."""
LEAST_ANSWERS = 200
"""Shares of fewer answers say little."""


def is_looping(token_ids: Sequence[int]) -> bool:
    """Whether the end of an answer repeats itself: few different 4-grams among its last 256 tokens."""
    tail = token_ids[-LOOP_TAIL_TOKENS:]
    if len(tail) < LEAST_LOOP_TOKENS:
        return False
    grams = [tuple(tail[i : i + GRAM_TOKENS]) for i in range(len(tail) - GRAM_TOKENS + 1)]
    return len(set(grams)) < LOOP_DISTINCT_SHARE * len(grams)


@dataclass
class Quality:
    """How many answers are cut, turn in a loop, or never came to an end of their thinking."""

    answers: int = 0
    truncated: int = 0
    looping: int = 0
    thinking_only: int = 0
    last_looping: str = field(default="", repr=False)
    """A sample id to look at."""

    def count(self, answer: Response) -> None:
        """Take note of one answer."""
        self.answers += 1
        self.truncated += answer.finish_reason == "length"
        self.thinking_only += bool(answer.reasoning) and not answer.text
        if is_looping(answer.response_token_ids):
            self.looping += 1
            self.last_looping = answer.sample_id

    def share(self, count: int) -> float:
        """Of the answers so far."""
        return count / self.answers if self.answers else 0.0

    def require(self, spec: Inference) -> None:
        """Stop while most of the time is still ahead.

        Raises:
            BadProduct: Too many answers are cut or looping; shares, limits and what to do are in the message.
        """
        if self.answers < LEAST_ANSWERS:
            return
        truncated, looping = self.share(self.truncated), self.share(self.looping)
        if truncated > spec.most_truncated_share:
            raise BadProduct(
                f"{truncated:.0%} of the first {self.answers} answers were cut at {spec.max_new_tokens} tokens (limit: "
                f"{spec.most_truncated_share:.0%}; {self.share(self.thinking_only):.0%} are thinking only). Raise "
                "inference.max_new_tokens, or allow it (--set inference.most_truncated_share=1). The answers are kept."
            )
        if looping > spec.most_looping_share:
            raise BadProduct(
                f"{looping:.0%} of the first {self.answers} answers repeat themselves (limit: "
                f"{spec.most_looping_share:.0%}), such as sample {self.last_looping}. Look at it in the journal; "
                "sample with a temperature, or allow it (--set inference.most_looping_share=1). The answers are kept."
            )
