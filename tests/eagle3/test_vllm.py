"""vLLM itself loads an export, shares the target's embeddings with it, and drafts."""

from pathlib import Path

import pytest
import torch

from tasks.eagle3.base import read_base, with_vocabulary
from tasks.eagle3.export import export_drafter
from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec
from tasks.eagle3.target_head import read_target_head
from tasks.eagle3.vocab_map import VocabMap
from tasks.recipe import Drafter
from tasks.system.child import Reporter


@pytest.fixture(
    params=[
        pytest.param(8000, id="some tokens"),
        pytest.param(None, id="all tokens", marks=pytest.mark.slow_fault),
    ]
)
def exported(request: pytest.FixtureRequest, tmp_path: Path, real_target: Path) -> Path:
    """An untrained drafter for every other of so many tokens, or for all, exported as training exports its base."""
    spec = InitialDrafterSpec(target_folder=real_target, out_folder=tmp_path / "initial", drafter=Drafter())
    initialize(spec, Reporter(tmp_path / "progress"))
    target = read_target_head(real_target)
    vocab_size = len(target.embed_VD)
    drafted = torch.arange(0, request.param, 2) if request.param else torch.arange(vocab_size)
    vocab_map = VocabMap(drafted, vocab_size)
    base = with_vocabulary(read_base(tmp_path / "initial", target, []), vocab_map, target)
    export_drafter(tmp_path / "drafter", base.config, base.raw_config, base.weights, vocab_map, reserve_bytes=0)
    return tmp_path / "drafter"


@pytest.mark.vllm
@pytest.mark.fault("bad-vocab-map")
def test_vllm_loads_the_export_and_drafts(exported, real_target, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(real_target),
        max_model_len=256,
        max_num_seqs=2,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config={"method": "eagle3", "model": str(exported), "num_speculative_tokens": 3},
    )
    engine.generate(["One, two, three,"] * 2, SamplingParams(temperature=0, max_tokens=12))
    counters = {metric.name: metric for metric in engine.get_metrics()}
    assert counters["vllm:spec_decode_num_draft_tokens"].value > 0
