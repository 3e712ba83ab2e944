"""Which prompts are asked: the rows of a JSONL file, checked, ordered by their content, split three ways.

The prompt of a row is its first human turn, with the system turn before it. What comes after is
never read, so it may be malformed. A blank turn says nothing and is passed over. A row that gives
no safe prompt is skipped with one of these reasons:

    no_conversations        neither `conversations` nor `messages` is there
    conversations_not_list  it is there, but is no list
    turn_not_object         a turn up to the prompt is no JSON object
    turn_keys_missing       such a turn lacks its role or its text
    unknown_role            such a turn is neither of a human, nor of an assistant, nor of the system
    text_not_string         such a turn has a role, but its text is no string
    starts_with_answer      an assistant speaks first: the human turn that follows needs that context
    blank_prompt            every human turn that could be the prompt is blank
    no_human_turn           nobody asks anything
    lone_surrogate          the prompt holds half a UTF-16 pair, which no tokenizer takes
    duplicate               an earlier row has the same prompt
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tasks import recipe
from tasks.errors import BadInput

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
UNNAMED_SOURCE = "unknown"


@dataclass(frozen=True)
class Prompt:
    """What one request asks."""

    sample_id: str
    source: str
    messages: list[dict[str, str]]


@dataclass(frozen=True)
class PromptSets:
    """The three disjoint sets of a run, and what became of the rows that they were drawn from."""

    training: list[Prompt]
    validation: list[Prompt]
    evaluation: list[Prompt]
    rows_read: int
    skipped: dict[str, int]


class _Unusable(Exception):
    """A row gives no safe prompt; the argument is the reason's code."""


def load_prompts(spec: recipe.Prompts, path: Path) -> PromptSets:
    """Read, check and split the prompts of a file.

    All rows are read once, and only ids and byte offsets are kept of them; then the chosen rows are read again.

    Args:
        spec: How many prompts each set gets, and the seed of the order.
        path: The JSONL file; ``spec.source`` made absolute by the caller.

    Raises:
        BadInput: The file cannot be read, a line of it is no JSON object, or too few rows are usable.
    """
    with _opened(path) as file:
        offsets, rows_read, skipped = _index(file, path)
        held_out = spec.evaluation_samples + spec.validation_samples
        needed = held_out + spec.training_samples
        if len(offsets) < needed:
            raise BadInput(_too_few(spec, path, len(offsets), rows_read, skipped))
        chosen = heapq.nsmallest(needed, offsets, key=lambda sample_id: _rank(spec.seed, sample_id))
        prompts = _read(file, path, chosen, offsets)
    return PromptSets(
        evaluation=prompts[: spec.evaluation_samples],
        validation=prompts[spec.evaluation_samples : held_out],
        training=prompts[held_out:],
        rows_read=rows_read,
        skipped=dict(skipped),
    )


def _opened(path: Path) -> BinaryIO:
    if path.suffix != ".jsonl":
        raise BadInput(
            f"prompts.source {path}: only a .jsonl file is read, and hub datasets are not yet. "
            "Save the rows as JSON Lines, one object with `conversations` and `source` a line, and name that file."
        )
    try:
        return path.open("rb")
    except OSError as error:
        raise BadInput(f"prompts.source {path}: cannot be read ({error.strerror}). Name an existing file.") from error


def _index(file: BinaryIO, path: Path) -> tuple[dict[str, int], int, Counter[str]]:
    """Where each usable prompt's first row starts, the number of rows, and how many were skipped by reason."""
    offsets: dict[str, int] = {}
    skipped: Counter[str] = Counter()
    rows_read = 0
    for offset, row in _rows(file, path):
        rows_read += 1
        try:
            sample_id = _prompt(row).sample_id
        except _Unusable as unusable:
            skipped[str(unusable)] += 1
            continue
        if sample_id in offsets:
            skipped["duplicate"] += 1
        else:
            offsets[sample_id] = offset
    return offsets, rows_read, skipped


def _read(file: BinaryIO, path: Path, chosen: list[str], offsets: Mapping[str, int]) -> list[Prompt]:
    """The chosen prompts in their order, read in the file's order, which is faster on a disk."""
    found = {}
    for sample_id in sorted(chosen, key=offsets.__getitem__):
        file.seek(offsets[sample_id])
        try:
            prompt = _prompt(_row(file.readline(), f"{path}, byte {offsets[sample_id]}"))
        except _Unusable:
            prompt = None
        if prompt is None or prompt.sample_id != sample_id:
            raise BadInput(f"{path} changed while it was read. Start again when nothing writes to it any more.")
        found[sample_id] = prompt
    return [found[sample_id] for sample_id in chosen]


def _rows(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Byte offset and content of every line that is not blank."""
    offset = 0
    for number, line in enumerate(file, 1):
        if line.strip():
            yield offset, _row(line, f"{path}, line {number}")
        offset += len(line)


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        # surrogatepass: a lone surrogate costs its own row, found later, and not the whole file.
        row = json.loads(line.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: not JSON in UTF-8 ({error}). Every line must be one JSON object.") from error
    if not isinstance(row, dict):
        raise BadInput(f"{place}: a JSON object was needed, found {type(row).__name__}. Write one row a line.")
    return row


def _prompt(row: Mapping[str, Any]) -> Prompt:
    messages = _messages(row)
    canonical = json.dumps(messages, sort_keys=True, separators=(",", ":"))
    source = row.get("source")
    named = isinstance(source, str) and source.strip()
    return Prompt(
        sample_id=hashlib.sha256(canonical.encode()).hexdigest()[:16],
        source=str(source).encode("utf-8", "replace").decode() if named else UNNAMED_SOURCE,
        messages=messages,
    )


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The first human turn as a chat, after the system turn if there is one."""
    system: list[str] = []
    asked_nothing = False
    for turn in _turns(row):
        role, text = _role_and_text(turn)
        if not text.strip():
            asked_nothing |= role == "user"
        elif role == "assistant":
            raise _Unusable("blank_prompt" if asked_nothing else "starts_with_answer")
        elif role == "system":
            system.append(text)
        else:
            # Many chat templates refuse a second system turn, so several become one.
            leading = [{"role": "system", "content": "\n\n".join(system)}] if system else []
            return _encodable([*leading, {"role": "user", "content": text}])
    raise _Unusable("blank_prompt" if asked_nothing else "no_human_turn")


def _turns(row: Mapping[str, Any]) -> list[Any]:
    turns = _first_given(row, "conversations", "messages")
    if turns is None:
        raise _Unusable("no_conversations")
    if not isinstance(turns, list):
        raise _Unusable("conversations_not_list")
    return turns


def _role_and_text(turn: Any) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise _Unusable("turn_not_object")
    role, text = _first_given(turn, "from", "role"), _first_given(turn, "value", "content")
    if role is None or text is None:
        raise _Unusable("turn_keys_missing")
    if not isinstance(role, str) or role.strip().lower() not in ROLES:
        raise _Unusable("unknown_role")
    if not isinstance(text, str):
        raise _Unusable("text_not_string")
    return ROLES[role.strip().lower()], text


def _first_given(values: Mapping[str, Any], name: str, other_name: str) -> Any:
    # Rows of mixed files carry the keys of both schemas, with null in those of the other one.
    return values[name] if values.get(name) is not None else values.get(other_name)


def _encodable(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    try:
        for message in messages:
            message["content"].encode()
    except UnicodeEncodeError as error:
        raise _Unusable("lone_surrogate") from error
    return messages


def _rank(seed: int, sample_id: str) -> bytes:
    return hashlib.sha256(f"{seed}{sample_id}".encode()).digest()


def _too_few(spec: recipe.Prompts, path: Path, found: int, rows_read: int, skipped: Mapping[str, int]) -> str:
    held_out = spec.evaluation_samples + spec.validation_samples
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(skipped.items())) or "none"
    advice = (
        f"lower prompts.training_samples to {found - held_out:,}"
        if found > held_out
        else "lower prompts.training_samples, prompts.validation_samples and prompts.evaluation_samples"
    )
    return (
        f"{path}: {held_out + spec.training_samples:,} usable prompts were needed "
        f"({spec.training_samples:,} training, {spec.validation_samples:,} validation, "
        f"{spec.evaluation_samples:,} evaluation), found {found:,} in {rows_read:,} rows. "
        f"Skipped: {reasons}. Name a file with more prompts, or {advice}."
    )
