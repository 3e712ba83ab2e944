"""Which samples go into which shard, which shards are still to be captured, and what is known of the others.

The plan is a pure function of the window's usable samples and the shard size, made before anything is captured:
longest first, ties by id, a shard closed where the next sample would not fit. A shard's name is the digest of
the ids planned for it, so a shard that was lost is made again under its name, with the same samples asked
together. Interrupted or not, the shards are the same; on the CPU, and with the same tokens and sequences a step,
byte by byte.

With another shard size than before, the shards that are there are kept and the samples in none of them are
planned anew. Torch-free.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import BadInput
from tasks.hidden_states.index import Recovered
from tasks.hidden_states.layout import bytes_per_token, token_hash
from tasks.hidden_states.spec import ExtractionSpec
from tasks.hidden_states.target import TargetShape
from tasks.hidden_states.windows import in_window
from tasks.system.responses import Response, read_responses


@dataclass(frozen=True)
class PlannedShard:
    """A unit of work: samples that are asked together and stored together, in this order."""

    file: str
    samples: list[Response]

    @property
    def tokens(self) -> int:
        """Of all its samples."""
        return sum(sample.length_tokens for sample in self.samples)


@dataclass
class Work:
    """What is to be captured, and what is known so far."""

    shards: list[PlannedShard]
    """Still to be captured."""
    total_tokens: int
    """Of every usable sample of the window, those on disk included."""
    done_tokens: int
    skipped: dict[str, str]
    """Sample id to the reason why it is not asked."""
    agrees: dict[str, bool]
    """Sample id to whether its last state gives vLLM's own token."""
    bad: dict[str, str]
    """Sample id to why its states were not stored."""
    kept_shards: int
    lost: dict[str, str]
    """Name of a shard of an earlier run that has to be made again to what was wrong with it."""
    made_shards: int = 0


def plan_work(spec: ExtractionSpec, shape: TargetShape, found: Recovered) -> Work:
    """Compare the plan with what is on disk.

    Raises:
        BadInput: A line is not a response, or no sample can be used.
        RecipeError: There are fewer training samples than windows.
    """
    all_usable, skipped = usable_samples(spec.responses_path, spec.target.window_tokens, shape.vocab_tokens)
    usable = in_window(all_usable, spec.window)
    shard_tokens = _shard_tokens(spec, shape)
    kept = {record.file for record in found.records}
    agrees = {sample.id: sample.teacher_agrees for record in found.records for sample in record.samples}
    bad = {sample_id: reason for record in found.records for sample_id, reason in record.rejected.items()}
    shards = plan_shards(usable, shard_tokens)
    if kept - {shard.file for shard in shards}:  # they were planned with another shard size
        shards = plan_shards([r for r in usable if r.sample_id not in agrees and r.sample_id not in bad], shard_tokens)
    todo = [shard for shard in shards if shard.file not in kept]
    total_tokens = sum(r.length_tokens for r in usable)
    done_tokens = total_tokens - sum(shard.tokens for shard in todo)
    return Work(todo, total_tokens, done_tokens, skipped, agrees, bad, len(kept), found.lost)


def plan_shards(samples: Iterable[Response], shard_tokens: int) -> list[PlannedShard]:
    """Assign every sample to a shard of at most ``shard_tokens``, or of one sample that is longer.

    Longest first: what does not fit into memory shows at once, and a step's requests are alike.
    """
    groups: list[list[Response]] = []
    room_tokens = 0
    for sample in sorted(samples, key=lambda r: (-r.length_tokens, r.sample_id)):
        if not groups or sample.length_tokens > room_tokens:
            groups.append([])
            room_tokens = shard_tokens
        groups[-1].append(sample)
        room_tokens -= sample.length_tokens
    return [PlannedShard(_file_name(group), group) for group in groups]


def _shard_tokens(spec: ExtractionSpec, shape: TargetShape) -> int:
    extraction = spec.extraction
    token_bytes = bytes_per_token(extraction.layout, shape.hidden_size, len(spec.layer_ids), extraction.top_k)
    return extraction.shard_bytes // token_bytes


def _file_name(samples: list[Response]) -> str:
    # The ids suffice: the folder's own name covers the responses, whose ids are unique.
    digest = hashlib.sha256("\n".join(sample.sample_id for sample in samples).encode()).hexdigest()
    return f"shard-{digest[:16]}.safetensors"


def usable_samples(
    responses_path: Path, window_tokens: int, vocab_tokens: int
) -> tuple[list[Response], dict[str, str]]:
    """The samples whose states can be captured, and why the others cannot.

    Args:
        responses_path: The finished set of answers.
        window_tokens: Longest sample that the engine takes, and one more token.
        vocab_tokens: Size of the target's vocabulary.

    Raises:
        BadInput: A line is not a response, or no sample can be used.
    """
    usable: list[Response] = []
    skipped: dict[str, str] = {}
    seen: dict[str, str] = {}
    for response in read_responses(responses_path):
        reason = _reason_to_skip(response, window_tokens, vocab_tokens)
        if reason is None:
            # Requests are recognised by their tokens, so two samples must not have the same.
            digest = token_hash([*response.prompt_token_ids, *response.response_token_ids])
            twin = seen.setdefault(digest, response.sample_id)
            reason = f"the same tokens as sample {twin}" if twin != response.sample_id else None
        if reason is None:
            usable.append(response)
        else:
            skipped[response.sample_id] = reason
    if not usable:
        some = list(skipped.items())[:3]
        raise BadInput(f"{responses_path}: no sample can be captured; {len(skipped)} are skipped, such as {some}.")
    return usable, skipped


def _reason_to_skip(response: Response, window_tokens: int, vocab_tokens: int) -> str | None:
    if not response.response_token_ids:
        return "the answer has no tokens"
    # vLLM prefills the whole sample and picks one more token.
    if response.length_tokens + 1 > window_tokens:
        return f"{response.length_tokens} tokens and one more do not fit the window of {window_tokens}"
    largest = max(*response.prompt_token_ids, *response.response_token_ids)
    if largest >= vocab_tokens:
        return f"token id {largest} is outside the vocabulary of {vocab_tokens}"
    return None
