"""Whether a server that is being asked still answers: its process, its failures in a row, and its tokens.

Completions are too rare to judge by: at 200 in flight an answer of 8K tokens takes a quarter of an hour. vLLM
counts every token that it makes (``vllm:generation_tokens_total`` at ``/metrics``), so that is looked at.
"""

import asyncio
import time
from collections.abc import Callable

import openai

from tasks.errors import DeadlineReached, ServerGone, Stopped
from tasks.system.processes import STOP
from tasks.system.vllm_server import Endpoint, counters, end_of, is_alive, is_healthy

POLL_SECONDS = 0.2
LOOK_SECONDS = 10.0
"""Time between two looks at the server's counters."""
FAILURES_IN_A_ROW = 8
"""Requests that may fail in a row before the server is asked whether it is healthy."""
GENERATED = "vllm:generation_tokens"


class ServerWatch:
    """Looks after one server while many requests are with it."""

    def __init__(
        self, endpoint: Endpoint, stall_seconds: float, on_made: Callable[[int], None], until_seconds: float
    ) -> None:
        """Begin to watch.

        Args:
            endpoint: The server.
            stall_seconds: Longest time for which requests may wait without the server making a token.
            on_made: Gets the tokens that the server has made since the first look.
            until_seconds: POSIX time at which requests that still wait are given up.
        """
        self._endpoint, self._stall_seconds, self._on_made = endpoint, stall_seconds, on_made
        self._until_seconds = until_seconds
        self._first_tokens: float | None = None
        self._failures = 0
        self._tokens = -1.0
        self._progress_at = time.monotonic()

    def note_answer(self) -> None:
        """A request was answered."""
        self._failures = 0
        self._progress_at = time.monotonic()

    async def note_failure(self, error: openai.APIError) -> None:
        """A request failed in a way that may pass.

        Raises:
            ServerGone: It is not the request, it is the server.
        """
        self._require_process()
        if isinstance(error, openai.RateLimitError | openai.APITimeoutError):
            return  # a busy server says so, or is slow
        self._failures += 1
        if self._failures >= FAILURES_IN_A_ROW:
            if not await asyncio.to_thread(is_healthy, self._endpoint):
                raise ServerGone(
                    f"{self._failures} requests in a row failed, the last with {type(error).__name__}: {error}, and "
                    f"{self._endpoint.base_url}/health does not answer well. {self._endpoint.log_hint}"
                )
            self._failures = 0

    async def watch(self, workers: list[asyncio.Task[None]]) -> None:
        """Look until the workers are done.

        Raises:
            Stopped: The run is ending.
            DeadlineReached: It is time to give up what is in flight.
            ServerGone: The server's process has ended, or it makes no tokens.
        """
        look_seconds = min(LOOK_SECONDS, self._stall_seconds / 4)
        await self._look()
        looked = time.monotonic()
        while not all(task.done() for task in workers):
            if STOP.is_set():
                raise Stopped("the run is being stopped; finished answers are in the journal.")
            if time.time() >= self._until_seconds:
                raise DeadlineReached("the deadline is here, so requests in flight were given up.")
            self._require_process()
            if time.monotonic() - looked > look_seconds:
                await self._look()
                looked = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self) -> None:
        tokens = await asyncio.to_thread(generated_tokens, self._endpoint)
        if tokens is not None and tokens != self._tokens:
            self._tokens, self._progress_at = tokens, time.monotonic()
            if self._first_tokens is None:
                self._first_tokens = tokens
            self._on_made(round(tokens - self._first_tokens))
        quiet_seconds = time.monotonic() - self._progress_at
        if quiet_seconds > self._stall_seconds:
            health = "answers" if await asyncio.to_thread(is_healthy, self._endpoint) else "does not answer"
            raise ServerGone(
                f"the vLLM server at {self._endpoint.base_url} has made no token for {quiet_seconds:.0f} s (limit: "
                f"{self._stall_seconds:.0f} s) although requests wait; its /health {health}. "
                f"{self._endpoint.log_hint}"
            )

    def _require_process(self) -> None:
        if not is_alive(self._endpoint):
            raise ServerGone(f"the vLLM server at {self._endpoint.base_url} has ended: {end_of(self._endpoint)}")


def generated_tokens(endpoint: Endpoint) -> float | None:
    """Tokens that the server has made since it started; None when it does not say."""
    try:
        return sum(counters(endpoint.base_url, GENERATED).values())
    except (OSError, ValueError):
        return None
