"""Whose rows a step's tensors hold, and putting a request's chunks together.

Shape legend: N rows of a step, T tokens of a request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch


class RequestState(Protocol):
    """What is read of vLLM's ``CachedRequestState`` (v1/worker/gpu_input_batch.py, 0.32)."""

    prompt_token_ids: list[int] | None
    num_computed_tokens: int
    """Tokens computed before this step; 0 again after a preemption."""
    num_prompt_tokens: int


@dataclass(frozen=True)
class Part:
    """Consecutive prompt tokens of one request in a step."""

    request_id: str
    first_row: int
    position: int
    """Position of the first row in the prompt."""
    tokens: int
    finishes: bool
    """The prompt's last token is among them."""


def parts_of_step(
    request_ids: Sequence[str], scheduled_tokens: Mapping[str, int], requests: Mapping[str, RequestState]
) -> list[Part]:
    """The prompt parts of a step; rows of generated tokens are left out.

    vLLM's V1 runner packs a step's tokens in the order of ``input_batch.req_ids``
    (``GPUModelRunner.execute_model``, 0.32).

    Args:
        request_ids: The batch, in order.
        scheduled_tokens: Tokens of each request in this step.
        requests: The runner's state of each request.
    """
    parts, row = [], 0
    for request_id in request_ids:
        state, scheduled = requests[request_id], scheduled_tokens[request_id]
        left = state.num_prompt_tokens - state.num_computed_tokens
        if left > 0:
            tokens = min(left, scheduled)
            parts.append(Part(request_id, row, state.num_computed_tokens, tokens, finishes=tokens == left))
        row += scheduled
    return parts


Rows = dict[str, torch.Tensor]
"""Tensors by name, each with one row a token."""


@dataclass
class RowCollector:
    """Rows of requests whose prompts arrive in several chunks."""

    _pieces: dict[str, list[Rows]] = field(default_factory=dict)

    def add(self, part: Part, step: Rows) -> Rows | None:
        """Take a part's rows out of a step.

        Args:
            part: Which rows.
            step: The step's N rows, on the CPU.

        Returns:
            The T rows of the request when the prompt is complete, else None. Rows before a position
            that was never computed here (a cached prefix) are missing from them.
        """
        if part.position == 0:
            # A preempted request starts over: what it had computed is computed again.
            self._pieces.pop(part.request_id, None)
        rows = slice(part.first_row, part.first_row + part.tokens)
        pieces = self._pieces.setdefault(part.request_id, [])
        if not part.finishes:
            # Copies: a view would keep the whole step's tensors alive.
            pieces.append({name: tensor[rows].clone() for name, tensor in step.items()})
            return None
        pieces.append({name: tensor[rows] for name, tensor in step.items()})
        del self._pieces[part.request_id]
        return pieces[0] if len(pieces) == 1 else {name: torch.cat([p[name] for p in pieces]) for name in step}

    def forget(self, request_ids: Collection[str]) -> None:
        """Drop what is left of requests that vLLM has ended."""
        for request_id in request_ids:
            self._pieces.pop(request_id, None)
