"""The capture's parts without vLLM: packing, statistics, teacher gate, finding the decoder stack."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tasks.errors import BadProduct, EngineRejected
from tasks.hidden_states.checks import check_bad_samples, check_teacher, fault_of
from tasks.hidden_states.encoding import encode_aux, encode_teacher
from tasks.hidden_states.layout import LAYOUTS
from tasks.hidden_states.model_runner import check_runner, decoder_stack
from tasks.hidden_states.packing import RowCollector, parts_of_step
from tasks.hidden_states.teacher import FinalStates, Teacher
from tasks.hidden_states.top_logits import top_logits

A, D = 2, 4


@dataclass
class Request:
    prompt_token_ids: list[int]
    num_computed_tokens: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)


def run_steps(requests: dict[str, Request], steps: list[dict[str, int]]) -> dict[str, list[float]]:
    """Drive steps whose every row holds 100 x request number + position; the final rows of each request."""
    collector, finished = RowCollector(), {}
    numbers = {name: number for number, name in enumerate(requests)}
    for scheduled in steps:
        values = [
            100.0 * numbers[name] + requests[name].num_computed_tokens + i
            for name, tokens in scheduled.items()
            for i in range(tokens)
        ]
        final_ND = torch.tensor(values)[:, None].expand(-1, D)
        for part in parts_of_step(list(scheduled), scheduled, requests):
            rows = collector.add(part, {"aux": final_ND.repeat(1, A), "final": final_ND})
            if rows is not None:
                assert rows["aux"].shape == (len(rows["final"]), A * D)
                finished[part.request_id] = rows["final"][:, 0].tolist()
        for name, tokens in scheduled.items():
            requests[name].num_computed_tokens += tokens
    return finished


@pytest.mark.fault("chunked-prefill")
def test_chunks_of_a_prompt_are_put_together_and_generated_tokens_left_out():
    requests = {"a": Request([7] * 3), "b": Request([7] * 6)}
    finished = run_steps(requests, [{"a": 3, "b": 2}, {"a": 1, "b": 2}, {"b": 2}, {"b": 1}])
    assert finished == {"a": [0, 1, 2], "b": [100, 101, 102, 103, 104, 105]}


@pytest.mark.fault("chunked-prefill")
def test_a_preempted_request_starts_over():
    requests = {"a": Request([7] * 4)}
    collector = RowCollector()
    first = torch.full((2, D), 9.0)
    (part,) = parts_of_step(["a"], {"a": 2}, requests)
    assert collector.add(part, {"final": first}) is None
    again = torch.arange(4.0)[:, None].expand(-1, D)
    (part,) = parts_of_step(["a"], {"a": 4}, requests)
    rows = collector.add(part, {"final": again})
    assert rows is not None and rows["final"][:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.fault("chunked-prefill")
def test_a_cached_prefix_shows_as_missing_rows():
    requests = {"a": Request([7] * 4, num_computed_tokens=3)}
    assert len(run_steps(requests, [{"a": 1}])["a"]) == 1


def states(tokens: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tokens, A * D, generator=generator), torch.randn(tokens, D, generator=generator)


def set_(tensor: torch.Tensor, where: object, value: object) -> None:
    tensor[where] = value


def stored_fault(layout: str, aux_TAD: torch.Tensor, final_TD: torch.Tensor, tokens: int = 8) -> str:
    """What is found in states as a layout stores them."""
    teacher: Teacher = FinalStates(final_TD)
    if layout == "fp8+topk":
        logits_TW = torch.cat([final_TD, -final_TD], dim=1)
        teacher = top_logits(lambda block_CD: block_CD, logits_TW, torch.arange(2 * D), D, 2 * D)
    return fault_of({**encode_aux(layout, aux_TAD, A), **encode_teacher(layout, teacher)}, tokens, [2, 9]) or ""


@pytest.mark.fault("bad-states")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda aux, final: set_(final, (3, 1), float("nan")), "the final state has NaN"),
        (lambda aux, final: set_(aux, (3, 5), float("inf")), "layer 9 has NaN or infinite"),
        (lambda aux, final: set_(final, (7, 0), -float("inf")), "the final state has NaN or infinite"),
        (lambda aux, final: set_(aux, slice(None), 0.0), "all columns of layer 2 are equal"),
        (lambda aux, final: set_(final, slice(None), 3.5), "all columns of the final state are equal"),
        (lambda aux, final: set_(final, slice(None), final[:, :1].clone()), "all columns of the final state"),
        (lambda aux, final: set_(final, slice(None), final[:1].clone()), "the final state is the same for every"),
        (lambda aux, final: set_(aux, (slice(None), slice(D, None)), aux[:, :D].clone()), "layer 2 and layer 9 are"),
    ],
)
def test_states_that_cannot_be_right_are_rejected(layout, damage, reason):
    aux_TAD, final_TD = states()
    assert stored_fault(layout, aux_TAD, final_TD) == ""
    damage(aux_TAD, final_TD)
    found = stored_fault(layout, aux_TAD, final_TD)
    if layout == "fp8+topk":
        reason = reason.replace("the final state", "the teacher's logits")
    assert reason in found


@pytest.mark.fault("chunked-prefill")
def test_rows_must_be_as_many_as_tokens():
    assert "8 rows were captured for 9 tokens" in stored_fault("bf16", *states(), tokens=9)


@pytest.mark.fault("bad-states")
def test_a_few_bad_samples_are_skipped_and_many_stop_the_run():
    check_bad_samples(dict.fromkeys("abc", "zero"), tried=10)
    check_bad_samples(dict.fromkeys("abcd", "zero"), tried=400)
    with pytest.raises(BadProduct, match=r"4 of 399 samples.*the first, a: zero"):
        check_bad_samples(dict.fromkeys("abcd", "zero"), tried=399)


@pytest.mark.fault("bad-states")
def test_teacher_gate_needs_97_percent_of_at_least_20():
    folder = Path("states")
    assert check_teacher(dict.fromkeys(range(19), False), folder) == 0.0
    assert check_teacher({n: n >= 3 for n in range(100)}, folder) == 0.97
    with pytest.raises(BadProduct, match=r"96 of 100 samples \(96.0%\).*97% are needed.*states can be trusted"):
        check_teacher({n: n >= 4 for n in range(100)}, folder)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList([nn.Linear(1, 1)]), nn.LayerNorm(1)


def wrapped(module: nn.Module, *names: str) -> nn.Module:
    for name in reversed(names):
        outer = nn.Module()
        outer.add_module(name, module)
        module = outer
    return module


@pytest.mark.parametrize("path", [("model",), ("language_model", "model"), ("model", "language_model")])
def test_the_decoder_stack_is_found_in_dense_and_wrapped_models(path):
    stack = Stack()
    assert decoder_stack(wrapped(stack, *path)) is stack


def test_a_model_without_a_decoder_stack_is_refused():
    with pytest.raises(EngineRejected, match=r"`layers` and `norm`.*found \['encoder'\]"):
        decoder_stack(wrapped(Stack(), "model", "encoder"))


def runner(**parallel: int) -> SimpleNamespace:
    sizes = {"pipeline_parallel_size": 1, "prefill_context_parallel_size": 1, "data_parallel_size": 1, **parallel}
    config = SimpleNamespace(parallel_config=SimpleNamespace(**sizes), speculative_config=None)
    return SimpleNamespace(input_batch=1, requests={}, execute_model=print, vllm_config=config)


def test_a_runner_whose_rank_sees_whole_states_is_accepted():
    check_runner(runner())


def test_parallelism_that_splits_layers_or_tokens_is_refused():
    with pytest.raises(EngineRejected, match=r"\{'pipeline_parallel_size': 2\}"):
        check_runner(runner(pipeline_parallel_size=2))


@pytest.mark.fault("unknown-model-runner")
def test_model_runner_v2_is_refused():
    v2 = runner()
    del v2.input_batch
    with pytest.raises(EngineRejected, match=r"lacks \['input_batch'\].*VLLM_USE_V2_MODEL_RUNNER=0"):
        check_runner(v2)
