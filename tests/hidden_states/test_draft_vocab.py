"""Over which tokens logits are stored: the base drafter's map, or the training answers' tokens. No vLLM."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasks.errors import BadInput, BadProduct
from tasks.hidden_states.draft_vocab import (
    DRAFT_VOCAB_NAME,
    DraftVocab,
    choose_draft_vocab,
    read_draft_vocab,
    write_draft_vocab,
)
from tasks.system.responses import Response

VOCAB_TOKENS = 20
ANSWERS = {"a": ("training", [5, 5, 5, 9]), "b": ("training", [9, 2, 5]), "c": ("validation", [7] * 9)}


@pytest.fixture
def responses_path(tmp_path) -> Path:
    path = tmp_path / "responses.jsonl"
    lines = [
        Response(
            sample_id=name,
            split=split,
            source="tests",
            prompt_token_ids=[1] * 30,
            response_token_ids=ids,
            finish_reason="stop",
        ).to_line()
        for name, (split, ids) in ANSWERS.items()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_drafter(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_from_scratch_it_is_the_training_answers_most_frequent_tokens(tmp_path, responses_path):
    scratch = write_drafter(tmp_path / "scratch", {"fc.weight": torch.zeros(2, 2)})
    for folder in (scratch, None):
        assert choose_draft_vocab(folder, responses_path, 3, VOCAB_TOKENS) == DraftVocab(VOCAB_TOKENS, [2, 5, 9])


@pytest.mark.fault("base-vocab-map-kept")
@pytest.mark.parametrize("prefix", ["", "model."])
def test_finetuning_keeps_the_base_drafters_map(tmp_path, responses_path, prefix):
    target_ids = torch.tensor([1, 4, 6])
    mask = torch.zeros(VOCAB_TOKENS, dtype=torch.bool)
    mask[target_ids] = True
    tensors = {"lm_head.weight": torch.zeros(3, 2), "d2t": target_ids - torch.arange(3), "t2d": mask}
    base = write_drafter(tmp_path / "base", {f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    assert choose_draft_vocab(base, responses_path, 99, VOCAB_TOKENS).target_ids == [1, 4, 6]


@pytest.mark.fault("bad-vocab-map")
def test_an_unsound_map_is_refused_before_anything_is_captured(tmp_path, responses_path):
    base = write_drafter(tmp_path / "base", {"lm_head.weight": torch.zeros(3, 2)})
    with pytest.raises(BadInput, match="needs both d2t and t2d for 3 of 20 tokens, found neither"):
        choose_draft_vocab(base, responses_path, 3, VOCAB_TOKENS)


def test_without_a_training_answer_there_is_no_vocabulary(tmp_path):
    (tmp_path / "responses.jsonl").write_text("")
    with pytest.raises(BadInput, match="none has a token. Answer some training prompts first"):
        choose_draft_vocab(None, tmp_path / "responses.jsonl", 3, VOCAB_TOKENS)


def test_a_store_keeps_its_map(tmp_path):
    vocab = DraftVocab(VOCAB_TOKENS, [2, 5, 9])
    write_draft_vocab(tmp_path, vocab)
    assert read_draft_vocab(tmp_path, vocab.sha256) == vocab


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "cannot be read"),
        (lambda path: path.write_text("{"), "cannot be read"),
        (lambda path: path.write_text(json.dumps({"vocab_tokens": 20, "target_ids": [1, 5, 9]})), "about the one with"),
    ],
)
def test_a_store_without_its_map_says_what_to_do(tmp_path, damage, message):
    vocab = DraftVocab(VOCAB_TOKENS, [2, 5, 9])
    write_draft_vocab(tmp_path, vocab)
    damage(tmp_path / DRAFT_VOCAB_NAME)
    with pytest.raises(BadProduct, match=rf"draft_vocab.json.*{message}.*keeps the shards"):
        read_draft_vocab(tmp_path, vocab.sha256)
