"""One answered prompt with its exact token ids, and the JSONL file of them that later stages read."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tasks.errors import BadInput

RESPONSES_NAME = "responses.jsonl"


@dataclass(frozen=True, kw_only=True)
class Response:
    """A prompt and its answer; the loss mask is the answer's ids."""

    sample_id: str
    split: Literal["training", "validation"]
    source: str
    prompt_token_ids: list[int]
    response_token_ids: list[int]
    finish_reason: str
    text: str = ""
    reasoning: str = ""

    @property
    def length_tokens(self) -> int:
        """Prompt and answer together."""
        return len(self.prompt_token_ids) + len(self.response_token_ids)

    def to_line(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":"))


def read_responses(path: Path) -> Iterator[Response]:
    """The finished samples of a responses file, in its order.

    Raises:
        BadInput: A line is not a response; the message has the line's number.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield Response(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise BadInput(f"{path}, line {number}: not a finished response ({error}).") from error
