"""How many tokens a number of samples will have, and what that rests on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.recipe import Recipe
from tasks.system.manifest import Manifest, recorded


@dataclass(frozen=True)
class MeanLengths:
    """Tokens of a sample."""

    prompt_tokens: float
    answer_tokens: float
    is_measured: bool
    basis: str


@dataclass(frozen=True)
class Tokens:
    """Tokens of all samples that are answered, validation included."""

    samples: int
    validation_samples: int
    prompt_tokens: int
    answer_tokens: int
    is_exact: bool
    """Counted, not estimated."""
    basis: str

    @property
    def total(self) -> int:
        """What is captured."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def a_sample(self) -> float:
        """Mean of prompt and answer together."""
        return self.total / self.samples


def stated_lengths(recipe: Recipe) -> MeanLengths:
    """The recipe's own estimate."""
    prompt, answer = recipe.inference.expected_prompt_tokens, recipe.inference.expected_answer_tokens
    return MeanLengths(prompt, answer, False, f"stated: {prompt:,} prompt and {answer:,} answer tokens a sample")


def measured_lengths(data_root: Path, answers_digest: str) -> MeanLengths | None:
    """The mean lengths of the largest finished set with this model and sampling; None when there is none."""
    sets = [m for m in _manifests(data_root / "responses") if m.identity.get("answers") == answers_digest]
    if not sets:
        return None
    facts = max(sets, key=_samples).facts
    samples = facts["training_samples"] + facts["validation_samples"]
    prompt, answer = facts["prompt_tokens"] / samples, facts["answer_tokens"] / samples
    basis = f"measured on {samples:,} earlier answers: {prompt:,.0f} prompt and {answer:,.0f} answer tokens a sample"
    return MeanLengths(prompt, answer, True, basis)


def _manifests(folder: Path) -> Iterable[Manifest]:
    found = [recorded(entry) for entry in sorted(folder.iterdir())] if folder.is_dir() else []
    return [manifest for manifest in found if manifest is not None]


def _samples(manifest: Manifest) -> int:
    return manifest.facts["training_samples"] + manifest.facts["validation_samples"]


def expected_tokens(recipe: Recipe, samples: int, means: MeanLengths, longer: float = 1.0) -> Tokens:
    """Tokens of a number of samples, the answers ``longer`` times the mean."""
    return Tokens(
        samples=samples,
        validation_samples=min(recipe.prompts.validation_samples, samples),
        prompt_tokens=round(samples * means.prompt_tokens),
        answer_tokens=round(samples * means.answer_tokens * longer),
        is_exact=False,
        basis=means.basis if longer == 1.0 else f"{means.basis}, the answers {longer:g} times as long",
    )


def counted_tokens(facts: dict[str, int]) -> Tokens:
    """Tokens of a finished set of answers, from the facts in its manifest."""
    samples = facts["training_samples"] + facts["validation_samples"]
    prompt, answer = facts["prompt_tokens"], facts["answer_tokens"]
    return Tokens(samples, facts["validation_samples"], prompt, answer, True, "counted in the finished set of answers")


def recipe_samples(recipe: Recipe) -> int:
    """Prompts that are answered and captured: to train on, and held out to choose the best checkpoint."""
    return recipe.prompts.training_samples + recipe.prompts.validation_samples
