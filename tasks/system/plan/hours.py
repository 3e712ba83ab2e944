"""How long each stage takes and what the machine costs meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.recipe import Hardware, Recipe
from tasks.system.plan.needs import OnDisk
from tasks.system.plan.tokens import Tokens

EVALUATION_ARMS = 3
"""Without a drafter, with the base, with the trained one: each loads the target once."""

RATES = {
    "load_seconds": "load",
    "generation_tokens_per_second": "generation",
    "extraction_tokens_per_second": "extraction",
    "training_tokens_per_second": "training",
    "evaluation_tokens_per_second": "evaluation",
}
"""Fields of the recipe's hardware that hours come from, and their names in an earlier run's measurements."""


@dataclass(frozen=True)
class Rate:
    """A throughput, or the seconds of a load."""

    value: float
    basis: str
    """measured, stated or assumed."""


@dataclass(frozen=True)
class StageHours:
    """One line of the time table."""

    stage: str
    part: str
    seconds: float
    basis: str
    is_load: bool = False
    """Loads of the target, instead of work on it."""

    @property
    def hours(self) -> float:
        """The same in hours."""
        return self.seconds / 3600


def rates_of(hardware: Hardware, measured: Mapping[str, float]) -> dict[str, Rate]:
    """The throughputs to count with: what an earlier run on this data root measured, else what the recipe says."""
    rates = {}
    for name, key in RATES.items():
        if key in measured:
            rates[key] = Rate(measured[key], "measured")
        else:
            rates[key] = Rate(getattr(hardware, name), "assumed" if name in hardware.assumed else "stated")
    return rates


def stage_hours(
    recipe: Recipe, tokens: Tokens, rates: Mapping[str, Rate], there: OnDisk, windows: int = 1
) -> list[StageHours]:
    """The time of every unfinished stage, model loads on lines of their own.

    Downloads are not counted: they depend on a network that nothing is known of.
    """
    left = max(0, tokens.samples - there.answered_samples) / tokens.samples
    answers = round(tokens.answer_tokens * left)
    epochs, prompts = recipe.training.epochs, recipe.prompts.evaluation_samples
    mean_answer = min(recipe.evaluation.max_new_tokens, tokens.answer_tokens / tokens.samples)
    asked = round(EVALUATION_ARMS * prompts * mean_answer)
    captured = round(tokens.total * (1 - there.captured_share))
    trained = round(tokens.total * epochs * (1 - there.trained_share))
    loads = max(1, round(windows * (1 - there.captured_share)))
    lines = [
        _loads("server-load", 1, rates),
        _work("inference", "answers", answers, "generation", rates),
        _loads("extraction", loads, rates),
        _work("extraction", "capture", captured, "extraction", rates),
        _work("training", f"{epochs} epoch{'s' * (epochs > 1)}", trained, "training", rates),
        _loads("evaluation", EVALUATION_ARMS, rates),
        _work("evaluation", f"{EVALUATION_ARMS} x {prompts} prompts", asked, "evaluation", rates),
    ]
    done = there.finished | ({"server-load"} if recipe.server.endpoint else set())  # somebody else's is up
    return [line for line in lines if line.stage not in done]


def _loads(stage: str, times: int, rates: Mapping[str, Rate]) -> StageHours:
    each = rates["load"]
    what = "load of the target" if times == 1 else f"{times} loads of the target"
    return StageHours(stage, what, times * each.value, f"{each.value / 60:.3g} min a load, {each.basis}", True)


def _work(stage: str, part: str, tokens: int, key: str, rates: Mapping[str, Rate]) -> StageHours:
    rate = rates[key]
    return StageHours(stage, part, tokens / rate.value, f"{tokens:,} tokens at {rate.value:,.0f} tok/s, {rate.basis}")


def total_seconds(lines: list[StageHours]) -> float:
    """All stages, one after the other."""
    return sum(line.seconds for line in lines)


def costs_dollars(lines: list[StageHours], prices_per_hour: list[float]) -> list[float]:
    """What the machine costs for that long, at each price."""
    return [total_seconds(lines) / 3600 * price for price in prices_per_hour]
