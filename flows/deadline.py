"""The deadline that a user asks for: a time of day or a duration, made into the moment that is meant. No Prefect."""

import re
import time
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import RecipeError
from tasks.system.deadline import Deadline, wind_down_seconds

TIME_OF_DAY = r"^([01]?\d|2[0-3]):[0-5]\d$"
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
SEARCHED_DAYS = 3
"""The next time of day is today's or tomorrow's; where a change of clocks skips it, it is not lost."""


class AskedDeadline(BaseModel):
    """When a run ends whatever it is at; its next start goes on from there."""

    # What concerns two fields is checked when the run begins, by `kept`: as a validator's error it would be many lines.
    model_config = ConfigDict(extra="forbid", title="Deadline")

    stop_at: str | None = Field(
        default=None,
        pattern=TIME_OF_DAY,
        description="time of day, such as 07:30: the next one after the time that the run is scheduled for",
    )
    time_zone: str | None = Field(
        default=None, description="of stop_at, such as Europe/Berlin; empty: that of the machine that runs"
    )
    after_hours: float | None = Field(
        default=None, gt=0, le=8760, description="instead of stop_at: hours after the run's start, such as 11.5"
    )
    wind_down_minutes: float = Field(
        default=10,
        ge=1,
        le=240,
        description="how long before it inference stops sending prompts and no stage or shard begins; of a short run "
        "a fifth at most",
    )
    then: Literal["stop", "finish"] = Field(
        default="stop",
        description="stop: the run ends, and the next start goes on; finish: only inference ends, and the run goes on "
        "to extraction, training and evaluation with the answers so far",
    )

    def kept(self, started_seconds: float, due_seconds: float) -> Deadline:
        """The moment that is meant.

        Args:
            started_seconds: POSIX time at which the run started: a duration counts from there.
            due_seconds: POSIX time for which it was scheduled: a night that it missed is over, and it does not run
                through the day after it.

        Raises:
            RecipeError: The fields do not go together.
        """
        if (self.stop_at is None) == (self.after_hours is None):
            found = "both" if self.stop_at else "neither"
            raise RecipeError(
                "a deadline is either a time of day (stop_at, such as 07:30) or a duration (after_hours, such as "
                f"11.5); found {found}."
            )
        if self.after_hours is not None:
            if self.time_zone is not None:
                raise RecipeError(
                    f"a deadline's time_zone belongs to stop_at; found {self.time_zone!r} with after_hours. Leave it "
                    "empty."
                )
            at_seconds = started_seconds + self.after_hours * 3600
        else:
            at_seconds = next_time(self.stop_at or "", self.time_zone, due_seconds)
        wind_down = wind_down_seconds(self.wind_down_minutes * 60, at_seconds - started_seconds)
        return Deadline(at_seconds=at_seconds, wind_down_seconds=wind_down, then=self.then)


def next_time(wanted: str, zone_name: str | None, after_seconds: float) -> float:
    """The POSIX time at which clocks show this time of day next.

    Where clocks go forward over it, the time that they show instead; where they go back, each of the two times is one.

    Args:
        wanted: Such as ``07:30``.
        zone_name: IANA name; None: the machine's own zone.
        after_seconds: POSIX time that it comes after.

    Raises:
        RecipeError: There is no such time zone.
    """
    zone = None if zone_name is None else _zone(zone_name)
    hour, minute = map(int, wanted.split(":"))
    today = datetime.fromtimestamp(after_seconds, zone).date()
    days = [today + timedelta(days=days) for days in range(SEARCHED_DAYS)]
    times = [at for day in days for at in _times_on(day, time_of_day(hour, minute), zone)]
    return min(at for at in times if at > after_seconds)


def _times_on(day: date, wanted: time_of_day, zone: ZoneInfo | None) -> list[float]:
    """When clocks show a time on a day: once, or twice when they go back; once, later, when they skip it."""
    both = [datetime.combine(day, wanted, zone).replace(fold=fold).timestamp() for fold in (0, 1)]
    shown = [at for at in both if datetime.fromtimestamp(at, zone).time() == wanted]
    return shown or [both[0]]


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # not there, a folder of the database, or no name at all
        raise RecipeError(
            f"a deadline's time_zone must be a name of the time zone database, such as Europe/Berlin; found {name!r}."
        ) from None


def asked_deadline(
    stop_at: str | None, time_zone: str | None, stop_after: str | None, then: Literal["stop", "finish"] | None
) -> AskedDeadline | None:
    """What the command line asks for; None when it asks for no deadline.

    Raises:
        RecipeError: It makes no sense; said before anything starts.
    """
    if (stop_at, time_zone, stop_after, then) == (None, None, None, None):
        return None
    if stop_at is not None and not re.match(TIME_OF_DAY, stop_at):
        raise RecipeError(f"--stop-at takes a time of day such as 07:30; found {stop_at!r}.")
    hours = None if stop_after is None else hours_of(stop_after)
    try:
        asked = AskedDeadline(stop_at=stop_at, time_zone=time_zone, after_hours=hours, then=then or "stop")
    except ValidationError as error:
        (first, *_) = error.errors()
        raise RecipeError(f"the deadline's {first['loc'][0]}: {first['msg']}; found {first['input']!r}.") from None
    asked.kept(time.time(), time.time())
    return asked


def hours_of(duration: str) -> float:
    """Of ``11h30m``, ``45m`` or ``90s``, the hours.

    Raises:
        RecipeError: It is no such duration.
    """
    match = _DURATION.fullmatch(duration.replace(" ", ""))
    if match is None or not any(match.groups()):
        raise RecipeError(f"--stop-after takes a duration such as 11h30m, 45m or 90s; found {duration!r}.")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours + minutes / 60 + seconds / 3600
