"""What the extraction child is told and what it answers; torch-free, so that the flow can write it."""

from dataclasses import dataclass
from pathlib import Path

from tasks.hidden_states.windows import WHOLE, Window
from tasks.recipe import Extraction, Target


@dataclass(frozen=True, kw_only=True)
class ExtractionSpec:
    """Capture the states of the samples of a responses file, all or a slice of them, into shards."""

    target_folder: Path
    """Checkpoint of the target, as vLLM loads it."""
    responses_path: Path
    """JSONL, one finished sample a line (``tasks.system.responses.Response``)."""
    out_folder: Path
    """Where shards and their index go; shards that are already there and valid are kept."""
    layer_ids: list[int]
    """Auxiliary layers: id j is the residual stream after j decoder layers."""
    reserve_bytes: int
    """Free space that must be left on the volume after every shard."""
    target: Target
    extraction: Extraction
    drafter_folder: Path | None
    """Drafter that training starts from: ``fp8+topk`` stores logits over its draft vocabulary. None without one."""
    draft_vocab_tokens: int
    """Size of that vocabulary, for a drafter that has none of its own yet."""
    window: Window = WHOLE
    """Which slice of the samples is captured."""


@dataclass(frozen=True, kw_only=True)
class ExtractionResult:
    """What was captured."""

    samples: int
    tokens: int
    states_bytes: int
    teacher_agreement: float
    """Share of samples whose last state, through the lm_head, gives the token that vLLM itself picks."""
    final_is_normed: bool
    """The stored last state is the one after the target's final norm."""
    shards: dict[str, str]
    """File name to sha256."""
    draft_vocab_files: list[str]
    """The file with the draft vocabulary of the stored logits; none where final states are stored."""
    skipped: dict[str, str]
    """Sample id to the reason why it has no states."""
    kept_shards: int
    """Shards of earlier runs that were as they were written."""
    made_shards: int
    """Shards that this run captured."""
    remade: dict[str, str]
    """Shards of earlier runs that had to be made again, file name to what was wrong; some of ``made_shards``."""
