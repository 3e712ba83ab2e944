"""Which samples an extraction still has to capture, and what is known of the others; torch-free."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.errors import BadInput
from tasks.hidden_states.index import ShardRecord
from tasks.hidden_states.layout import token_hash
from tasks.hidden_states.spec import ExtractionSpec
from tasks.hidden_states.target import TargetShape
from tasks.system.responses import Response, read_responses

TEACHER_NAME = "teacher.jsonl"
"""``[sample id, agrees]`` a line: what the teacher gate has seen, so that a resumed run knows it too."""


@dataclass
class Work:
    """What is to be captured, and what is known so far."""

    samples: list[Response]
    """Still to be captured, longest first."""
    total_tokens: int
    """Of every usable sample, those on disk included."""
    done_tokens: int
    skipped: dict[str, str]
    """Sample id to the reason why it is not asked."""
    agrees: dict[str, bool]
    """Sample id to whether its last state gives vLLM's own token."""
    tried: int = 0
    """Samples asked in this run."""
    bad: dict[str, str] = field(default_factory=dict)
    """Sample id to why its states were not stored."""


def plan_work(spec: ExtractionSpec, shape: TargetShape, stored: list[ShardRecord]) -> Work:
    """Compare the responses with what is on disk.

    Raises:
        BadInput: A line is not a response, or no sample can be used.
    """
    stored_ids = {sample.id for record in stored for sample in record.samples}
    usable, skipped = _usable(spec, shape)
    # Longest first: what does not fit into memory shows at once, and a step's requests are alike.
    todo = sorted((r for r in usable if r.sample_id not in stored_ids), key=lambda r: (-r.length_tokens, r.sample_id))
    total_tokens = sum(r.length_tokens for r in usable)
    agrees = {key: value for key, value in _read_teacher(spec.out_folder).items() if key in stored_ids}
    return Work(todo, total_tokens, total_tokens - sum(r.length_tokens for r in todo), skipped, agrees)


def note_teacher(folder: Path, agrees: Mapping[str, bool]) -> None:
    """Append what the teacher gate saw. Not fsynced: what a crash loses here is only not counted."""
    with (folder / TEACHER_NAME).open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(item) + "\n" for item in agrees.items())


def _read_teacher(folder: Path) -> dict[str, bool]:
    path = folder / TEACHER_NAME
    if not path.exists():
        return {}
    agrees = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            sample_id, agreed = json.loads(line)
        except ValueError:
            continue  # torn by a crash, or glued to a torn one
        agrees[sample_id] = agreed
    return agrees


def _usable(spec: ExtractionSpec, shape: TargetShape) -> tuple[list[Response], dict[str, str]]:
    usable: list[Response] = []
    skipped: dict[str, str] = {}
    seen: dict[str, str] = {}
    for response in read_responses(spec.responses_path):
        reason = _reason_to_skip(response, spec.target.window_tokens, shape.vocab_tokens)
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
        raise BadInput(f"{spec.responses_path}: no sample can be captured; {len(skipped)} are skipped, such as {some}.")
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
