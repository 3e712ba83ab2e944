"""The capture on a stand-in for vLLM's worker: what it keeps of steps, in every layout and on every rank. No vLLM."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tasks.hidden_states.capture import Capture, ExpectedSample
from tasks.hidden_states.layout import LAYOUTS, StoreFormat, token_hash
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.shards import ShardWriter
from tests.hidden_states.test_capture_parts import Request

D, V, LAYER_IDS = 16, 50, [1, 3]
TARGET_IDS = list(range(5, 45))
PROMPTS = {"a": list(range(1, 10)), "b": list(range(20, 32))}
STEPS = [{"a": 5, "b": 4}, {"a": 4, "b": 8}]
"""Both prompts arrive in two chunks."""


class Layer(nn.Module):
    """As vLLM's decoder layers: the output is the sum of what is returned."""

    def forward(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x_ND * 1.5, x_ND.roll(1, 1)


class Model(nn.Module):
    """Three layers, a norm, and a lm_head that gives no logits on ranks other than 0."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed_VD = torch.randn(V, D, generator=generator).bfloat16()
        self.head_VD = torch.randn(V, D, generator=generator).bfloat16()
        self.layers, self.norm = nn.ModuleList([Layer(), Layer(), Layer()]), nn.Tanh()
        self.asked, self._rank = [], rank

    def forward(self, ids_N: torch.Tensor) -> torch.Tensor:
        x_ND = self.embed_VD[ids_N]
        for layer in self.layers:
            x_ND = sum(layer(x_ND))
        return self.norm(x_ND)

    def compute_logits(self, states_ND: torch.Tensor) -> torch.Tensor | None:
        self.asked.append(len(states_ND))
        return states_ND @ self.head_VD.T if self._rank == 0 else None


def make_runner(model: Model) -> SimpleNamespace:
    """The parts of vLLM's V1 runner that the capture touches."""
    sizes = {"pipeline_parallel_size": 1, "prefill_context_parallel_size": 1, "data_parallel_size": 1}
    requests = {name: Request(ids) for name, ids in PROMPTS.items()}
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=list(requests)),
        requests=requests,
        device=torch.device("cpu"),
        get_model=lambda: model,
        model_config=SimpleNamespace(dtype=torch.bfloat16, get_vocab_size=lambda: V),
        vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(**sizes), speculative_config=None),
    )

    def execute_model(scheduled: SimpleNamespace) -> None:
        ids = []
        for name, tokens in scheduled.num_scheduled_tokens.items():
            first = requests[name].num_computed_tokens
            ids += PROMPTS[name][first : first + tokens]
        model(torch.tensor(ids))

    runner.execute_model = execute_model
    return runner


def captured(folder, layout: str, rank: int = 0) -> tuple[Capture, Model]:
    """Run both steps."""
    store = StoreFormat(layout, LAYER_IDS, D)
    if layout == "fp8+topk":
        store = StoreFormat(layout, LAYER_IDS, D, top_k=8, vocab_map_sha256="a map")
    model = Model(rank)
    runner = make_runner(model)
    writer = ShardWriter(folder, store, 0) if rank == 0 else None
    capture = Capture(runner, store, writer, TARGET_IDS if layout == "fp8+topk" else [])
    capture.expect([ExpectedSample(name, "training", "tests", 3, token_hash(ids)) for name, ids in PROMPTS.items()])
    for step in STEPS:
        total = sum(step.values())
        scheduled = SimpleNamespace(total_num_scheduled_tokens=total, num_scheduled_tokens=step, finished_req_ids=set())
        runner.execute_model(scheduled)
        for name, tokens in step.items():
            runner.requests[name].num_computed_tokens += tokens
    return capture, model


def final_of(ids: list[int]) -> torch.Tensor:
    return Model(0)(torch.tensor(ids))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_of_several_requests_end_up_in_their_own_samples(tmp_path, layout):
    capture, model = captured(tmp_path, layout)
    assert capture.write("shard-0.safetensors", {"a": True, "b": True}, {}) is None
    reader = StateReader(tmp_path)
    for entry in reader.samples:
        sample, final_TD = reader.read(entry), final_of(PROMPTS[entry.sample_id])
        assert len(sample.aux_TAD) == len(PROMPTS[entry.sample_id])
        logits_TV = (final_TD @ model.head_VD.T).float()
        if layout == "fp8+topk":
            assert torch.equal(sample.teacher.choice_T, logits_TV.argmax(-1))
            wanted_TR = logits_TV[:, TARGET_IDS].gather(1, sample.teacher.ids_TR)
            torch.testing.assert_close(sample.teacher.logits_TR, wanted_TR, atol=0.02, rtol=0)
        else:
            torch.testing.assert_close(sample.teacher.final_TD, final_TD, atol=0.07, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_row_of_each_prompt_names_the_teachers_token(tmp_path, layout):
    capture, model = captured(tmp_path, layout)
    for name, ids in PROMPTS.items():
        best = int((final_of(ids)[-1] @ model.head_VD.T).argmax())
        assert best in capture.report.teacher_tokens[name]
    assert capture.report.bad == {} and capture.report.failure is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_takes_part_in_the_same_collectives(tmp_path, layout):
    """A rank that asked for fewer logits than rank 0 would leave it waiting for ever."""
    (first, writing), (second, other) = captured(tmp_path, layout), captured(tmp_path, layout, rank=1)
    assert writing.asked == other.asked != []
    assert second.report.failure is None
    assert first.report.teacher_tokens.keys() == {"a", "b"} and second.report.teacher_tokens == {}


def test_hooks_are_gone_after_the_finish(tmp_path):
    capture, model = captured(tmp_path, "bf16")
    capture.finish()
    assert not any(module._forward_hooks for module in model.modules())
