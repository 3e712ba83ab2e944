"""What each stage is going to write, and where."""

from dataclasses import dataclass, field
from pathlib import Path

from tasks.hidden_states.layout import bytes_per_token, expected_store_bytes
from tasks.recipe import ModelFacts, Recipe
from tasks.system.plan.engine_arguments import engine_facts
from tasks.system.plan.model import auxiliary_layers, drafter_parameters
from tasks.system.plan.tokens import Tokens

# An answered token takes about 6 characters in the journal and 6 in the set, plus about 5 of text in each.
ANSWER_BYTES_PER_TOKEN = 22
# A checkpoint holds float32 weights and two optimizer moments; the newest two are kept while a third is written.
CHECKPOINT_BYTES_PER_PARAMETER = 12
CHECKPOINTS_AT_ONCE = 3
# base/ and best/ are exported in bfloat16.
EXPORT_BYTES_PER_PARAMETER = 2 * 2
DRAFTER_BYTES_PER_PARAMETER = 4
REPORT_BYTES = 20_000_000
# What torch.compile and the kernels' autotuning leave in vLLM's cache folder, generously.
COMPILE_CACHE_BYTES = 2_000_000_000

STAGES = ("server-load", "drafter-download", "inference", "extraction", "training", "evaluation")
"""Stages that write or take time, in the order of the run."""


@dataclass(frozen=True)
class Need:
    """What one stage is still going to write on one filesystem."""

    stage: str
    need_bytes: int
    path: Path
    basis: str


@dataclass(frozen=True)
class OnDisk:
    """What is there already and is going to be used."""

    finished: frozenset[str] = frozenset()
    """Stages that have nothing left to do."""
    target_is_ready: bool = False
    """The weights need no making or fetching."""
    bytes_there: dict[str, int] = field(default_factory=dict)
    """Stage to bytes of its unfinished work: they are not free space any more, and will not be written again."""
    states_bytes: dict[str, int] = field(default_factory=dict)
    """Layout to bytes of a store that is begun."""
    answered_samples: int = 0
    """In the journal, of those that are asked."""
    captured_share: float = 0.0
    """Of the windows, those whose states are there or used up."""
    trained_share: float = 0.0
    """Of the windows, those that are trained on."""


def store_bytes(recipe: Recipe, facts: ModelFacts, layout: str, tokens: int, samples: int) -> int:
    """Bytes of a hidden-state store."""
    layers = auxiliary_layers(recipe)
    return expected_store_bytes(layout, facts.hidden_size, layers, tokens, samples, recipe.extraction.top_k)


def token_bytes(recipe: Recipe, facts: ModelFacts, layout: str) -> int:
    """Bytes of one token in a shard."""
    return bytes_per_token(layout, facts.hidden_size, auxiliary_layers(recipe), recipe.extraction.top_k)


def answers_bytes(tokens: int) -> int:
    """Bytes of journal and set."""
    return tokens * ANSWER_BYTES_PER_TOKEN


def training_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """Bytes of checkpoints and exports."""
    each = CHECKPOINT_BYTES_PER_PARAMETER * CHECKPOINTS_AT_ONCE + EXPORT_BYTES_PER_PARAMETER
    return drafter_parameters(recipe, facts) * each


def hand_over_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """Bytes of the checkpoint that a window goes on from, and that stays until it is trained on."""
    return drafter_parameters(recipe, facts) * CHECKPOINT_BYTES_PER_PARAMETER


def drafter_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """Bytes of the drafter that training starts from, in float32; one in a folder of the user's is not copied."""
    if recipe.drafter.source is not None and recipe.drafter.source.kind == "folder":
        return 0
    return drafter_parameters(recipe, facts) * DRAFTER_BYTES_PER_PARAMETER


def largest_file(recipe: Recipe, facts: ModelFacts, tokens: Tokens) -> tuple[str, int]:
    """The largest single file that the run writes: what, and its bytes."""
    files = {
        "a shard of states": min(recipe.extraction.shard_bytes, store_bytes(recipe, facts, "bf16", tokens.total, 1)),
        "a training checkpoint": drafter_parameters(recipe, facts) * CHECKPOINT_BYTES_PER_PARAMETER,
        "the journal of answers": answers_bytes(tokens.total) // 2,
    }
    name = max(files, key=lambda name: files[name])
    return name, files[name]


def fixed_needs(
    recipe: Recipe, facts: ModelFacts, tokens: Tokens, there: OnDisk, data_root: Path, cache_folder: Path | None
) -> list[Need]:
    """What the unfinished stages write besides hidden states, whatever the layout.

    Args:
        recipe: The recipe.
        facts: Sizes of the target.
        tokens: Of all samples.
        there: What need not be written again.
        data_root: Where stages write.
        cache_folder: vLLM's own cache; None where it cannot be known.
    """
    parameters = f"{drafter_parameters(recipe, facts):,} parameters of the drafter"
    # Later stages load the target too, so it is needed although the answers may be complete.
    is_needed = not there.target_is_ready and "evaluation" not in there.finished
    weights = max(0, facts.weights_bytes - there.bytes_there.get("server-load", 0)) if is_needed else 0
    journal = answers_bytes(tokens.total) // 2
    left = journal * max(0, tokens.samples - there.answered_samples) // tokens.samples + journal
    needs = [
        Need("server-load", weights, data_root / "targets", "weights of the target that are not there yet"),
        _need("drafter-download", drafter_bytes(recipe, facts), there, data_root / "drafters", parameters),
        _need("inference", left, there, data_root / "responses", f"{tokens.total:,} tokens, {_known(tokens)}"),
        _need("training", training_bytes(recipe, facts), there, data_root / "trained", f"checkpoints of {parameters}"),
        _need("evaluation", REPORT_BYTES, there, data_root / "evaluations", "report and logs"),
    ]
    if (
        cache_folder is not None
        and "server-load" not in there.finished
        and not engine_facts(recipe.server.engine).is_eager
    ):
        basis = "vLLM's compile cache, an allowance"
        needs.insert(1, Need("server-load", COMPILE_CACHE_BYTES, cache_folder, basis))
    return [need for need in needs if need.need_bytes]


def _need(stage: str, whole: int, there: OnDisk, path: Path, basis: str) -> Need:
    left = 0 if stage in there.finished else max(0, whole - there.bytes_there.get(stage, 0))
    return Need(stage, left, path, basis)


def states_need(there: OnDisk, layout: str, whole: int, tokens: Tokens, windows: int, data_root: Path) -> Need:
    """What the extraction still writes: of a store in windows, its largest window."""
    left = 0 if "extraction" in there.finished else max(0, whole - there.states_bytes.get(layout, 0))
    how = layout if windows <= 1 else f"{layout} in {windows} windows"
    return Need("extraction", left, data_root / "states", f"{how}, {tokens.total:,} tokens, {_known(tokens)}")


def _known(tokens: Tokens) -> str:
    return "counted" if tokens.is_exact else "estimated"
