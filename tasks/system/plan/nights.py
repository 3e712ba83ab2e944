"""In how many nights a plan is done, where each run ends at the night's deadline and the next goes on from there.

What a night costs: stages wind down before its end, and what holds the target in memory (inference, extraction,
each arm of the evaluation) loads it again in the night that goes on with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.system import deadline
from tasks.system.plan.hours import EVALUATION_ARMS, StageHours

DAY_SECONDS = 24 * 3600
WIND_DOWN_SECONDS = 600.0
"""What a deadline takes unless it is told otherwise."""


@dataclass(frozen=True)
class Nights:
    """From when to when there may be work, every night."""

    begin: str
    """HH:MM"""
    end: str
    seconds: float

    @property
    def wind_down_seconds(self) -> float:
        """Before a night's end, when nothing that needs the target is begun."""
        return deadline.wind_down_seconds(WIND_DOWN_SECONDS, self.seconds)


def nights_between(begin: str, end: str) -> Nights:
    """Nights from one time of day to another, past midnight or not.

    Args:
        begin: HH:MM.
        end: HH:MM; the same as ``begin``: round the clock.
    """
    length = (_seconds(end) - _seconds(begin)) % DAY_SECONDS
    return Nights(begin, end, length or DAY_SECONDS)


def _seconds(time_of_day: str) -> int:
    hour, minute = map(int, time_of_day.split(":"))
    return hour * 3600 + minute * 60


@dataclass(frozen=True)
class BrokenOff:
    """Where a night ends."""

    stage: str
    done_share: float


@dataclass(frozen=True)
class InNights:
    """A plan, spread over nights."""

    broken_off: list[BrokenOff]
    """At the end of each night but the last."""
    last_seconds: float
    """How much of the last night is used."""

    @property
    def count(self) -> int:
        """How many nights."""
        return len(self.broken_off) + (self.last_seconds > 0)


@dataclass(frozen=True)
class _Piece:
    stage: str
    seconds: float
    stops_before_seconds: float
    """How long before the end of a night it stops."""
    load_seconds: float = 0.0
    """Before it, and again in every night that goes on with it."""
    splits: bool = True
    """What was done of it when a night ends is kept."""


def in_nights(lines: Sequence[StageHours], load_seconds: float, nights: Nights) -> InNights | None:
    """Spread the time table of a plan over nights.

    Args:
        lines: Of the unfinished stages.
        load_seconds: One load of the target.
        nights: How long they are.

    Returns:
        None when a night is too short for something that has to be done within one.
    """
    whole: dict[str, float] = {}
    for line in lines:
        whole[line.stage] = whole.get(line.stage, 0.0) + (0.0 if line.is_load else line.seconds)
    done = dict.fromkeys(whole, 0.0)
    broken_off: list[BrokenOff] = []
    used_seconds = 0.0
    for piece in _pieces(lines, load_seconds, nights.wind_down_seconds):
        to_do = piece.seconds
        while to_do > 0:
            room = nights.seconds - piece.stops_before_seconds - used_seconds - piece.load_seconds
            if room > 0 and (piece.splits or room >= to_do):
                now = min(room, to_do)
                to_do -= now
                done[piece.stage] += now
                used_seconds += piece.load_seconds + now
                continue
            if not used_seconds:
                return None
            broken_off.append(BrokenOff(piece.stage, done[piece.stage] / whole[piece.stage]))
            used_seconds = 0.0
    return InNights(broken_off, used_seconds)


def _pieces(lines: Sequence[StageHours], load_seconds: float, wind_down_seconds: float) -> Iterator[_Piece]:
    """The work in its order: window by window, if there are any, and then arm by arm."""
    work = {line.stage: line.seconds for line in lines if not line.is_load}
    loads = {line.stage: line.seconds for line in lines if line.is_load}
    if "inference" in work:
        yield _Piece("inference", work["inference"], wind_down_seconds, loads.get("server-load", 0.0))
    windows = max(1, round(loads.get("extraction", 0.0) / load_seconds))
    for _ in range(windows):
        if "extraction" in work:
            yield _Piece("extraction", work["extraction"] / windows, wind_down_seconds, load_seconds)
        if "training" in work:
            yield _Piece("training", work["training"] / windows, min(deadline.SAVING_SECONDS, wind_down_seconds))
    for _ in range(EVALUATION_ARMS if "evaluation" in work else 0):
        yield _Piece("evaluation", work["evaluation"] / EVALUATION_ARMS, wind_down_seconds, load_seconds, splits=False)
