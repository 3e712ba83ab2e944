"""How long what took, one JSON line each under the data root: planned against actual, and rates for the next plan."""

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.system.engine_child import OnProgress, Progress
from tasks.system.run import Run

PLANS_FOLDER = "plans"
"""Under the data root: this module's file, each run's plan, and the layouts that were chosen."""
TIMINGS_NAME = "timings.jsonl"
ENOUGH_SHARE = 0.5
"""Of the largest amount that a rate was measured on: what a resumed run had left may be too little for a rate."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One piece of work."""

    run: str
    recipe: str
    stage: str
    what: str
    """stage: all of it, one try; load: one load of the target; or the work whose rate counts, such as extraction."""
    seconds: float
    tokens: int = 0
    written_bytes: int = 0


def note(run: Run, stage: str, what: str, seconds: float, tokens: int = 0, written_bytes: int = 0) -> None:
    """Append a line; where that fails, on a full volume for one, the work's own outcome is what counts."""
    path = run.data_root / PLANS_FOLDER / TIMINGS_NAME
    line = Timing(
        run=run.name,
        recipe=run.recipe.name,
        stage=stage,
        what=what,
        seconds=round(seconds, 3),
        tokens=tokens,
        written_bytes=written_bytes,
    )
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(line)) + "\n")


def read(data_root: Path) -> list[Timing]:
    """All lines, oldest first; what cannot be read is passed over."""
    path = data_root / PLANS_FOLDER / TIMINGS_NAME
    timings = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            timings.append(Timing(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return timings


@contextmanager
def timed(run: Run, stage: str, what: str) -> Iterator[None]:
    """Note how long the body took, if it comes to its end."""
    began = time.monotonic()
    yield
    note(run, stage, what, time.monotonic() - began)


@contextmanager
def metered(run: Run, stage: str, on_progress: OnProgress, all_tokens: int) -> Iterator[OnProgress]:
    """Hand progress on, and note the rate of the phase that has the stage's name, whatever ends the work.

    Args:
        run: The run.
        stage: Name of the stage, and of the phase that is its work proper.
        on_progress: Gets every report.
        all_tokens: What the phase's total stands for.
    """
    first: tuple[float, Progress] | None = None
    last: tuple[float, Progress] | None = None

    def report(progress: Progress) -> None:
        nonlocal first, last
        if progress.phase == stage:
            last = (time.monotonic(), progress)
            first = first or last
        on_progress(progress)

    try:
        yield report
    finally:
        if first is not None and last is not None and last[1].done > first[1].done and last[1].total:
            gained = (last[1].done - first[1].done) / last[1].total
            note(run, stage, stage, last[0] - first[0], round(gained * all_tokens))


def measured_rates(data_root: Path, recipe_name: str) -> dict[str, float]:
    """Tokens a second of extraction and training, and the seconds of a load, as last measured with this recipe."""
    timings = [timing for timing in read(data_root) if timing.recipe == recipe_name]
    rates = {}
    for what in ("extraction", "training"):
        known = [timing for timing in timings if timing.what == what and timing.seconds > 0]
        largest = max((timing.tokens for timing in known), default=0)
        enough = [timing for timing in known if timing.tokens >= max(1, ENOUGH_SHARE * largest)]
        if enough:
            rates[what] = enough[-1].tokens / enough[-1].seconds
    if loads := [timing.seconds for timing in timings if timing.what == "load"]:
        rates["load"] = loads[-1]
    return rates
