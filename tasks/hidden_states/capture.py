"""Capturing hidden states inside vLLM's worker processes, by hooks on the decoder stack.

vLLM mixes ``CaptureExtension`` into its worker class (``worker_extension_cls``); the driver calls
its methods with ``collective_rpc``. Every rank holds full states under tensor parallelism, so rank
0 alone copies and writes; the others only take part in the collective ``compute_logits``.

Shape legend: N rows of a step, T tokens of a sample, A auxiliary layers, D hidden size, V vocab.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.errors import EngineRejected, HeroRunError
from tasks.hidden_states.checks import fault_of
from tasks.hidden_states.layout import StoreFormat, token_hash
from tasks.hidden_states.packing import Part, RowCollector, parts_of_step
from tasks.hidden_states.shards import CapturedSample, ShardWriter

_STORED_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class CapturePlan:
    """What the workers are told at the start; travels as a plain dictionary."""

    folder: str
    store: StoreFormat
    reserve_bytes: int


@dataclass(frozen=True)
class ExpectedSample:
    """A sample that is about to be asked; travels as a plain dictionary."""

    sample_id: str
    split: str
    source: str
    prompt_tokens: int
    token_hash: str


@dataclass
class CaptureReport:
    """What became of a shard's samples so far; travels as a plain dictionary."""

    teacher_tokens: dict[str, int] = field(default_factory=dict)
    """Sample id to argmax of the lm_head over its last state, as it is stored."""
    bad: dict[str, str] = field(default_factory=dict)
    """Sample id to why its states are not to be stored."""
    failure: tuple[str, str] | None = None
    """Class name and message of what stopped the capture."""


class CaptureExtension:
    """Methods that vLLM's worker gains; each is called on every rank by the driver."""

    rank: int
    model_runner: Any

    def capture_start(self, plan: dict[str, Any]) -> tuple[str, str] | None:
        """Register the hooks and, on rank 0, take over the folder.

        Returns:
            None, or class name and message of the error: vLLM would hand on only its text.
        """
        store = StoreFormat(**plan["store"])
        arguments = CapturePlan(**{**plan, "store": store})
        try:
            writer = None
            if self.rank == 0:
                writer = ShardWriter(Path(arguments.folder), store, arguments.reserve_bytes)
            self._capture = Capture(self.model_runner, store, writer)
        except HeroRunError as error:
            return type(error).__name__, str(error)
        return None

    def capture_expect(self, samples: list[dict[str, Any]]) -> None:
        """Begin a shard of these samples; their requests are recognised by their token ids."""
        self._capture.expect([ExpectedSample(**sample) for sample in samples])

    def capture_report(self) -> dict[str, Any]:
        """What became of the shard's samples so far (``CaptureReport``)."""
        return asdict(self._capture.report)

    def capture_write(self, file: str, agrees: dict[str, bool], rejected: dict[str, str]) -> tuple[str, str] | None:
        """Write the samples of ``agrees``, captured since ``capture_expect``, as one shard.

        Args:
            file: Name of the shard.
            agrees: Sample id to whether vLLM picked the teacher's token, in the order in which they are stored.
            rejected: Sample id to the reason why it has no states.

        Returns:
            None, or class name and message of the error.
        """
        return self._capture.write(file, agrees, rejected)

    def capture_finish(self) -> None:
        """Remove the hooks."""
        self._capture.finish()


class Capture:
    """Hooks on one worker's model, and the way of the steps' rows into a shard.

    The rows of one shard are held in memory until all of them are there and the driver has checked the report.
    """

    def __init__(self, model_runner: Any, store: StoreFormat, writer: ShardWriter | None) -> None:
        check_runner(model_runner)
        self._runner, self._store, self._writer = model_runner, store, writer
        self._model = model_runner.get_model()
        self._rows = RowCollector()
        self._expected: dict[str, ExpectedSample] = {}
        self._captured: dict[str, CapturedSample] = {}
        self.report = CaptureReport()
        self._step: dict[str, torch.Tensor] | None = None  # None between steps: warm-up runs are not captured
        self._handles = self._register_hooks()
        self._run_step: Callable[..., Any] = model_runner.execute_model
        model_runner.execute_model = self._captured_step

    def expect(self, samples: list[ExpectedSample]) -> None:
        """Begin a shard: what an earlier one has left is dropped."""
        self._expected = {sample.token_hash: sample for sample in samples}
        self._captured, self.report = {}, CaptureReport()

    def write(self, file: str, agrees: dict[str, bool], rejected: dict[str, str]) -> tuple[str, str] | None:
        """Write the captured samples of ``agrees`` as one shard; see ``CaptureExtension.capture_write``."""
        if self._writer is not None:
            writer, captured = self._writer, self._captured
            samples = [replace(captured[sample_id], teacher_agrees=agreed) for sample_id, agreed in agrees.items()]
            self._captured = {}
            self._guarded(lambda: writer.write(file, samples, rejected))
        return self.report.failure

    def finish(self) -> None:
        """Undo the hooks."""
        for handle in self._handles:
            handle.remove()
        self._runner.execute_model = self._run_step

    def _register_hooks(self) -> list[Any]:
        stack = decoder_stack(self._model)
        hooks = {f"layer {j}": stack.layers[j - 1] for j in self._store.layer_ids}
        hooks["final"] = stack.norm
        return [module.register_forward_hook(self._hook(name)) for name, module in hooks.items()]

    def _hook(self, name: str) -> Callable[..., None]:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self._step is not None:
                self._step[name] = self._state_of(name, output)

        return keep

    def _state_of(self, name: str, output: Any) -> torch.Tensor:
        """[N, D]: a layer's output, or the normed state (vLLM 0.32, models/llama.py and deepseek_v2.py)."""
        if name == "final":
            state_ND = output[0] if isinstance(output, tuple) else output
        else:
            # (hidden, residual): the residual stream is their sum. The next layer's fused norm
            # overwrites both in place, hence now and not at the end of the step.
            state_ND = output[0] + output[1] if isinstance(output, tuple) else output
        if self._writer is None and name != "final":
            return state_ND[:0]
        return state_ND.to("cpu" if self._writer is not None else state_ND.device, _STORED_DTYPE, copy=True)

    @torch.inference_mode()
    def _captured_step(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens == 0 or self.report.failure is not None:
            return self._run_step(scheduler_output, *args, **kwargs)
        self._rows.forget(scheduler_output.finished_req_ids)
        self._step = {}
        try:
            output = self._run_step(scheduler_output, *args, **kwargs)
            states = self._step
        finally:
            self._step = None
        parts = parts_of_step(
            self._runner.input_batch.req_ids, scheduler_output.num_scheduled_tokens, self._runner.requests
        )
        teacher_tokens = self._teacher_tokens(states["final"], parts)
        if self._writer is not None:
            # An exception here would take the engine down and lose its name on the way to the driver.
            self._guarded(lambda: self._collect(states, parts, teacher_tokens))
        return output

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.report.failure = (type(error).__name__, str(error) or repr(error))

    def _teacher_tokens(self, final_ND: torch.Tensor, parts: list[Part]) -> list[int]:
        """The lm_head's choice after the last row of every part that finishes its prompt.

        Computed from the state as it is stored, on all ranks: ``compute_logits`` is a collective.
        """
        last_rows = [part.first_row + part.tokens - 1 for part in parts if part.finishes]
        if not last_rows:
            return []
        device, dtype = self._runner.device, self._runner.model_config.dtype
        logits_NV = self._model.compute_logits(final_ND[last_rows].to(device, dtype))
        return [] if logits_NV is None else logits_NV.argmax(dim=-1).tolist()

    def _collect(self, states: dict[str, torch.Tensor], parts: list[Part], teacher_tokens: list[int]) -> None:
        aux_NAD = torch.cat([states[f"layer {j}"] for j in self._store.layer_ids], dim=1)
        remaining = iter(teacher_tokens)
        for part in parts:
            rows = self._rows.add(part, aux_NAD, states["final"])
            if rows is not None:
                self._keep_sample(part.request_id, *rows, teacher_token=next(remaining))

    def _keep_sample(self, request_id: str, aux_TAD: torch.Tensor, final_TD: torch.Tensor, teacher_token: int) -> None:
        token_ids = list(self._runner.requests[request_id].prompt_token_ids or [])
        sample = self._expected.pop(token_hash(token_ids), None)
        if sample is None:
            return  # vLLM's own request, or a sample that was preempted after its last row
        fault = fault_of(aux_TAD, final_TD, len(token_ids), self._store.layer_ids)
        if fault is not None:
            self.report.bad[sample.sample_id] = fault
            return
        self.report.teacher_tokens[sample.sample_id] = teacher_token
        self._captured[sample.sample_id] = CapturedSample(
            sample.sample_id, sample.split, sample.source, token_ids, sample.prompt_tokens, aux_TAD, final_TD
        )


def decoder_stack(model: nn.Module) -> Any:
    """The module with ``layers`` and ``norm``, in dense models and in wrapped ones (``language_model.model``).

    Raises:
        EngineRejected: There is none.
    """
    module = model
    while True:
        children = dict(module.named_children())
        if "layers" in children and "norm" in children:
            return module
        inner = [children[name] for name in ("language_model", "model") if name in children]
        if not inner:
            raise EngineRejected(
                f"hidden states are captured from a module with `layers` and `norm`, but {type(model).__name__} has "
                f"none below `language_model` or `model` (found {sorted(children)} in {type(module).__name__})."
            )
        module = inner[0]


def check_runner(model_runner: Any) -> None:
    """Whether a step's packing can be read from this runner, and every rank sees whole states.

    Raises:
        EngineRejected: It is not vLLM's V1 runner, or the parallelism splits layers or tokens.
    """
    missing = [name for name in ("input_batch", "requests", "execute_model") if not hasattr(model_runner, name)]
    if missing:
        raise EngineRejected(
            f"the capture reads batches from vLLM's V1 model runner; {type(model_runner).__module__} lacks {missing}. "
            "Set VLLM_USE_V2_MODEL_RUNNER=0 and use a vLLM that honours it."
        )
    parallel = model_runner.vllm_config.parallel_config
    sizes = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
    }
    if split := {name: size for name, size in sizes.items() if size > 1}:
        raise EngineRejected(
            f"hidden states are captured where one rank sees every layer and token, found {split}. "
            "Remove these from extraction.engine.arguments; tensor and expert parallelism are fine."
        )
    if model_runner.vllm_config.speculative_config is not None:
        raise EngineRejected("extraction runs without a drafter. Remove --speculative-config from its arguments.")
