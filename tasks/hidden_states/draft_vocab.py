"""Which tokens the top logits of a store are about: decided before the first is captured, and kept beside them.

Finetuning keeps the base drafter's map. From scratch it comes from the answers of the training split.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.eagle3.target_head import read_tensor, tensor_places
from tasks.eagle3.vocab_map import VocabMap, checked_map, most_frequent
from tasks.errors import BadInput, BadProduct
from tasks.hidden_states.layout import vocab_map_hash
from tasks.system.files import write_atomically
from tasks.system.responses import read_responses

DRAFT_VOCAB_NAME = "draft_vocab.json"
_HEAD, _OFFSETS, _MASK = "lm_head.weight", "d2t", "t2d"


@dataclass(frozen=True)
class DraftVocab:
    """The draft vocabulary of a store."""

    vocab_tokens: int
    """Size of the target's vocabulary."""
    target_ids: list[int]
    """Target id of every draft id, increasing."""

    @property
    def sha256(self) -> str:
        """Names the map."""
        return vocab_map_hash(self.target_ids)

    def to_map(self) -> VocabMap:
        """As the trainer has it."""
        return VocabMap(torch.tensor(self.target_ids), self.vocab_tokens)


def choose_draft_vocab(
    drafter_folder: Path | None, responses_path: Path, draft_vocab_tokens: int, vocab_tokens: int
) -> DraftVocab:
    """The base drafter's map, or the most frequent tokens of the training answers when it has none.

    Args:
        drafter_folder: Checkpoint of the drafter that training starts from; None for no drafter.
        responses_path: The whole set of answers, whatever part of it is captured.
        draft_vocab_tokens: Size of the map that is made from answers.
        vocab_tokens: Size of the target's vocabulary.

    Raises:
        BadInput: The drafter's map is unsound, or no training answer has a token.
    """
    base = _map_of(drafter_folder, vocab_tokens) if drafter_folder is not None else None
    if base is not None:
        return DraftVocab(vocab_tokens, base.target_ids_W.tolist())
    counts_V = torch.zeros(vocab_tokens, dtype=torch.long)
    for response in read_responses(responses_path):
        # A larger id is none of the target's; its sample is skipped.
        if response.split == "training" and max(response.response_token_ids, default=vocab_tokens) < vocab_tokens:
            counts_V += torch.bincount(torch.tensor(response.response_token_ids), minlength=vocab_tokens)
    if not counts_V.any():
        raise BadInput(
            f"{responses_path}: the draft vocabulary comes from the answers of the training split, and none has a "
            "token. Answer some training prompts first."
        )
    return DraftVocab(vocab_tokens, most_frequent(counts_V, draft_vocab_tokens).target_ids_W.tolist())


def _map_of(folder: Path, vocab_tokens: int) -> VocabMap | None:
    """The map in a drafter's checkpoint; None in one that was made from scratch and has no lm_head yet."""
    places = tensor_places(folder)
    names = {name.removeprefix("model."): name for name in places}
    if _HEAD not in names:
        return None
    head_WD, d2t, t2d = (
        read_tensor(folder, places, names[name]) if name in names else None for name in (_HEAD, _OFFSETS, _MASK)
    )
    assert head_WD is not None
    return checked_map(d2t, t2d, len(head_WD), vocab_tokens, str(folder))


def write_draft_vocab(folder: Path, vocab: DraftVocab) -> None:
    """Keep the map in a store."""
    write_atomically(
        folder / DRAFT_VOCAB_NAME, json.dumps({"vocab_tokens": vocab.vocab_tokens, "target_ids": vocab.target_ids})
    )


def read_draft_vocab(folder: Path, sha256: str) -> DraftVocab:
    """The map of a store.

    Raises:
        BadProduct: It is missing, or is not the one that the store's logits are about.
    """
    path = folder / DRAFT_VOCAB_NAME
    remedy = "Run the extraction again: it writes that file anew and keeps the shards."
    try:
        data = json.loads(path.read_text())
        vocab = DraftVocab(data["vocab_tokens"], data["target_ids"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadProduct(
            f"{path}: the draft vocabulary of the stored logits cannot be read ({error}). {remedy}"
        ) from error
    if vocab.sha256 != sha256:
        raise BadProduct(
            f"{path} holds a map of {len(vocab.target_ids)} tokens with the hash {vocab.sha256}; the stored logits "
            f"are about the one with {sha256}. {remedy}"
        )
    return vocab
