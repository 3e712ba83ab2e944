"""Asking goes on when a server dies: it is started again, a bounded number of times, and what is missing is asked."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.errors import GaveUp, ServerGone
from tasks.system.vllm_server import Endpoint, is_alive

BARREN_STARTS = 2
"""A server that dies this often in a row without an answer in between would do so again."""


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How a server that died comes back."""

    most: int
    """How often."""
    reopen: Callable[[Endpoint], Endpoint]
    """Ends what is left of it and starts it again at the same address; somebody else's is awaited."""
    on_death: Callable[[ServerGone], None]
    """Told of every death."""


def keep_asking(
    endpoint: Endpoint, restarts: Restarts, ask: Callable[[Endpoint], None], answered: Callable[[], int]
) -> None:
    """Ask until everything is asked.

    Args:
        endpoint: The server; one of ours that is not running any more is started first.
        restarts: How it comes back.
        ask: Asks what is still missing; raises ``ServerGone`` when the server dies.
        answered: How many answers there are so far.

    Raises:
        GaveUp: It died too often, or twice in a row without an answer in between.
        HeroRunError: What ``ask`` and ``reopen`` raise.
    """
    if not is_alive(endpoint):
        endpoint = restarts.reopen(endpoint)
    deaths = barren_starts = 0
    while True:
        before = answered()
        try:
            return ask(endpoint)
        except ServerGone as error:
            restarts.on_death(error)
            deaths += 1
            barren_starts = 0 if answered() > before else barren_starts + 1
            if barren_starts == BARREN_STARTS or deaths > restarts.most:
                raise _gave_up(error, deaths, barren_starts, answered(), restarts.most) from error
        endpoint = restarts.reopen(endpoint)


def _gave_up(error: ServerGone, deaths: int, barren_starts: int, answered: int, most: int) -> GaveUp:
    why = (
        f"{barren_starts} times in a row without an answer in between"
        if barren_starts == BARREN_STARTS
        else f"{deaths} times, and {most} restarts are allowed (--set server.restarts=N)"
    )
    return GaveUp(
        f"the vLLM server died {why}. {answered} prompts were answered in this run; all answers are kept, and the "
        f"next start asks only the others. The last time: {error}"
    )
