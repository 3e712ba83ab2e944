"""Two ranks, each with half of the lm_head: the top logits that rank 0 writes are those of one rank with all of it.

A process of its own for each: an engine with two ranks cannot share the session's.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.spec import ExtractionResult
from tasks.recipe import Engine, from_json, to_json
from tasks.system.child import read_outcome
from tasks.system.responses import Response
from tests.hidden_states.samples import make_spec

pytestmark = pytest.mark.vllm

PROJECT = Path(__file__).parents[2]
VOCAB = 500
"""Not a multiple of what vLLM pads each rank's part of the lm_head to."""


@pytest.fixture(scope="module")
def random_target(tmp_path_factory):
    """A Llama of random weights, large enough to have opinions, with heads for two ranks."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("random-target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def random_responses(number: int = 24) -> list[Response]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(20, 90, (number,), generator=generator).tolist()
    return [
        Response(
            sample_id=f"s{i}",
            split="training",
            source="tests",
            prompt_token_ids=[i + 1],
            response_token_ids=torch.randint(VOCAB, (length,), generator=generator).tolist(),
            finish_reason="stop",
        )
        for i, length in enumerate(lengths)
    ]


def extracted(target: Path, folder: Path, ranks: int) -> tuple[ExtractionResult, StateReader]:
    """Run the extraction as the flow does."""
    spec = make_spec(target, random_responses(), folder, layout="fp8+topk", top_k=16)
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    engine = Engine(arguments=[f"--tensor-parallel-size={ranks}", "--skip-tokenizer-init"], environment=environment)
    spec = dataclasses.replace(
        spec,
        layer_ids=[1, 2, 3],
        draft_vocab_tokens=200,
        target=dataclasses.replace(spec.target, window_tokens=256),
        extraction=dataclasses.replace(spec.extraction, engine=engine),
    )
    path = folder / "extract.json"
    path.write_text(to_json(spec))
    command = [sys.executable, "-m", "tasks.hidden_states.extract", str(path)]
    with (folder / "log").open("wb") as log:
        subprocess.run(command, stdout=log, stderr=log, cwd=PROJECT, env={**os.environ, **environment}, check=False)
    return from_json(ExtractionResult, json.dumps(read_outcome(path))), StateReader(spec.out_folder)


def test_top_logits_of_two_ranks_are_those_of_one(random_target, tmp_path_factory):
    found = {}
    for ranks in (1, 2):
        result, reader = extracted(random_target, tmp_path_factory.mktemp(f"ranks{ranks}"), ranks)
        assert result.samples == 24 and result.teacher_agreement >= 0.97
        found[ranks] = {entry.sample_id: reader.read(entry).teacher for entry in reader.samples}
    for sample_id, one in found[1].items():
        two = found[2][sample_id]
        torch.testing.assert_close(two.full_lse_T, one.full_lse_T, atol=0.1, rtol=0.02)
        torch.testing.assert_close(two.draft_lse_T, one.draft_lse_T, atol=0.1, rtol=0.02)
        torch.testing.assert_close(two.logits_TR, one.logits_TR, atol=0.3, rtol=0.03)
    same = torch.cat([two.choice_T == found[1][sample_id].choice_T for sample_id, two in found[2].items()])
    assert same.float().mean() > 0.95
    halves = torch.cat([two.choice_T for two in found[2].values()]) < VOCAB // 2
    assert 0.2 < halves.float().mean() < 0.8, "choices must come from both ranks' halves for this to show anything"
