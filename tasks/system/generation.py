"""Many chat requests against one vLLM server: bounded concurrency, exact token ids, counted retries."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from tasks.errors import HeroRunError
from tasks.redaction import redacted
from tasks.system.api_keys import api_key
from tasks.system.deadline import FOR_EVER, Until
from tasks.system.prompts import Prompt
from tasks.system.server_watch import ServerWatch
from tasks.system.vllm_server import Endpoint

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
TRANSIENT = (openai.APITimeoutError, openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How every request is sampled and bounded."""

    max_new_tokens: int
    temperature: float
    top_p: float
    in_flight: int
    request_timeout_seconds: float
    request_retries: int
    token_stall_seconds: float
    """Longest time for which requests may wait without the server making a token."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A finished request with the exact ids that the server read and made."""

    prompt: Prompt
    prompt_token_ids: list[int]
    response_token_ids: list[int]
    finish_reason: str
    text: str
    reasoning: str
    latency_seconds: float
    acceptance_histogram: list[int] = field(default_factory=list)
    """Verification steps by number of accepted draft tokens; empty without a drafter."""


@dataclass(frozen=True)
class Rejected:
    """A prompt that the server refused for good."""

    prompt: Prompt
    reason: str


@dataclass
class Tally:
    """What happened to the requests, while they run and afterwards; it may count over several servers."""

    answered: int = 0
    answer_tokens: int = 0
    made_tokens: int = 0
    """Of all requests, answered or in flight, when the servers were last looked at."""
    rejected: Counter[str] = field(default_factory=Counter)
    """By reason."""
    retries: Counter[str] = field(default_factory=Counter)
    """By the client's exception."""
    unasked: int = 0
    """Prompts that a deadline left no time for."""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """From the first request to the last answer so far, without the time between servers."""

    @property
    def done(self) -> int:
        """Prompts that are dealt with."""
        return self.answered + self.rejected.total()

    @property
    def tokens_in_flight(self) -> int:
        """Of requests that are not answered yet, as far as is known."""
        return max(0, self.made_tokens - self.answer_tokens)

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens a second so far."""
        return self.answer_tokens / self.seconds if self.seconds else 0.0

    def begin(self) -> None:
        """Requests are about to be sent."""
        self.started = time.monotonic() - self.seconds

    def count(self, outcome: "Answer | Rejected") -> None:
        """Add one outcome."""
        self.seconds = time.monotonic() - self.started
        if isinstance(outcome, Rejected):
            self.rejected[outcome.reason] += 1
        else:
            self.answered += 1
            self.answer_tokens += len(outcome.response_token_ids)


OnDone = Callable[["Answer | Rejected", Tally], None]


def ask_all(
    prompts: Iterable[Prompt],
    endpoint: Endpoint,
    sampling: Sampling,
    on_done: OnDone,
    tally: Tally | None = None,
    until: Until = FOR_EVER,
) -> Tally:
    """Ask every prompt, ``sampling.in_flight`` at a time; ``on_done`` runs on this thread as answers come.

    Args:
        prompts: What to ask.
        endpoint: Whom.
        sampling: How.
        on_done: Gets every outcome, and the tally that has counted it.
        tally: Goes on counting; a new one by default.
        until: When sending ends; the prompts that are left are not asked.

    Raises:
        ServerGone: The server has ended, is not healthy, or makes no tokens; nothing more is sent then.
        Stopped: The run is ending.
        DeadlineReached: Requests were still in flight when waiting ends.
    """
    try:
        return asyncio.run(_ask_all(iter(prompts), endpoint, sampling, on_done, tally or Tally(), until))
    except* (HeroRunError, OSError) as group:
        # The first failure cancels the other requests, so it is the one that says why.
        raise group.exceptions[0] from None


async def _ask_all(
    queue: Iterator[Prompt], endpoint: Endpoint, sampling: Sampling, on_done: OnDone, tally: Tally, until: Until
) -> Tally:
    earlier_tokens = tally.answer_tokens

    def note_made(tokens: int) -> None:
        tally.made_tokens = earlier_tokens + tokens

    watch = ServerWatch(endpoint, sampling.token_stall_seconds, note_made, until.wait_seconds)
    tally.begin()
    # The pool is as wide as the fan-out: a smaller one would queue requests here and time them out.
    pool = httpx2.Limits(max_connections=sampling.in_flight, max_keepalive_connections=sampling.in_flight)
    async with openai.AsyncOpenAI(
        base_url=f"{endpoint.base_url}/v1",
        api_key=api_key(endpoint.base_url) or "none",
        max_retries=0,  # the SDK would send an answer that only takes long a second time; ours are counted
        timeout=sampling.request_timeout_seconds,
        http_client=openai.DefaultAsyncHttpxClient(limits=pool),
    ) as client:

        async def worker() -> None:
            for prompt in queue:
                if time.time() >= until.send_seconds:
                    return
                outcome = await _ask(client, prompt, endpoint, sampling, tally, watch)
                tally.count(outcome)
                on_done(outcome, tally)

        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker()) for _ in range(sampling.in_flight)]
            group.create_task(watch.watch(workers))
    return tally


async def _ask(
    client: openai.AsyncOpenAI,
    prompt: Prompt,
    endpoint: Endpoint,
    sampling: Sampling,
    tally: Tally,
    watch: ServerWatch,
) -> Answer | Rejected:
    last = ""
    for attempt in range(sampling.request_retries + 1):
        started = time.monotonic()
        try:
            reply = await client.chat.completions.create(
                model=endpoint.model,
                messages=prompt.messages,  # type: ignore[arg-type]
                max_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                extra_body={"return_token_ids": True},
            )
            watch.note_answer()
            return _answer(prompt, reply.model_dump(), time.monotonic() - started)
        except TRANSIENT as error:
            tally.retries[type(error).__name__] += 1
            last = f"{type(error).__name__}: {error}"
            await watch.note_failure(error)
            await asyncio.sleep(backoff_seconds(attempt, error))
        except openai.APIStatusError as error:
            return Rejected(prompt, redacted(f"HTTP {error.status_code}: {error.message}"))
    # The server is well, so it is this prompt that it cannot answer; the others must not wait for it.
    return Rejected(prompt, f"no answer in {sampling.request_retries + 1} tries, the last with {last}")


def backoff_seconds(attempt: int, error: openai.APIError) -> float:
    """Exponential back-off with jitter, or what the server asks for; bounded."""
    asked = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    seconds = float(asked) if asked.isdigit() else FIRST_BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0)
    return min(LONGEST_BACKOFF_SECONDS, seconds)


def _answer(prompt: Prompt, reply: dict[str, Any], latency_seconds: float) -> Answer:
    choice = reply["choices"][0]
    message = choice["message"]
    speculative = (reply.get("metrics") or {}).get("speculative_decoding") or {}
    return Answer(
        prompt=prompt,
        prompt_token_ids=reply["prompt_token_ids"],
        response_token_ids=choice["token_ids"],
        finish_reason=choice["finish_reason"],
        text=message.get("content") or "",
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
        latency_seconds=latency_seconds,
        acceptance_histogram=speculative.get("acceptance_histogram", []),
    )
