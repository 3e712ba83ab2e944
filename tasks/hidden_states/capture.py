"""Capturing hidden states inside vLLM's worker processes, by hooks on the decoder stack.

vLLM mixes ``CaptureExtension`` into its worker class (``worker_extension_cls``); the driver calls
its methods with ``collective_rpc``. Every rank holds full states under tensor parallelism, so rank
0 alone copies and writes; the others only take part in the collective ``compute_logits``.

Shape legend: N rows of a step, T tokens of a sample, A auxiliary layers, D hidden size, V target vocabulary,
W draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.errors import HeroRunError
from tasks.hidden_states.checks import fault_of
from tasks.hidden_states.encoding import STATE_DTYPE, decode_teacher, encode_aux, encode_teacher
from tasks.hidden_states.layout import StoreFormat, token_hash
from tasks.hidden_states.model_runner import check_runner, decoder_stack
from tasks.hidden_states.packing import Part, RowCollector, Rows, parts_of_step
from tasks.hidden_states.shards import CapturedSample, ShardWriter
from tasks.hidden_states.teacher import FinalStates, Teacher
from tasks.hidden_states.top_logits import near_choices, near_stored_choices, top_logits


@dataclass(frozen=True)
class CapturePlan:
    """What the workers are told at the start; travels as a plain dictionary."""

    folder: str
    store: StoreFormat
    reserve_bytes: int
    draft_target_ids: list[int]
    """Target id of every draft id, where logits are stored; else empty."""


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

    teacher_tokens: dict[str, list[int]] = field(default_factory=dict)
    """Sample id to what the target may pick after its last token, by what is stored: see ``near_choices``."""
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
            self._capture = Capture(self.model_runner, store, writer, arguments.draft_target_ids)
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

    def __init__(
        self, model_runner: Any, store: StoreFormat, writer: ShardWriter | None, draft_target_ids: list[int]
    ) -> None:
        check_runner(model_runner)
        self._runner, self._store, self._writer = model_runner, store, writer
        self._model = model_runner.get_model()
        self._target_ids_W = torch.tensor(draft_target_ids, device=model_runner.device, dtype=torch.long)
        self._rows = RowCollector()
        self._expected: dict[str, ExpectedSample] = {}
        self._captured: dict[str, CapturedSample] = {}
        self.report = CaptureReport()
        self._step: dict[str, Rows] | None = None  # by hook; None between steps: warm-up runs are not captured
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
                state_ND = self._state_of(name, output)
                # Encoded on the device: float8 halves what goes over the bus. All ranks need the final state.
                self._step[name] = {"final": state_ND} if name == "final" else self._encoded_layer(state_ND)

        return keep

    def _encoded_layer(self, state_ND: torch.Tensor) -> Rows:
        return {name: tensor.cpu() for name, tensor in encode_aux(self._store.layout, state_ND, 1).items()}

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
        return state_ND.to(STATE_DTYPE, copy=True)

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
        teacher = self._teacher(states["final"]["final"])
        teacher_tokens = self._teacher_tokens(teacher, parts)
        if self._writer is not None and teacher is not None:
            # An exception here would take the engine down and lose its name on the way to the driver.
            stored = {name: tensor.cpu() for name, tensor in encode_teacher(self._store.layout, teacher).items()}
            self._guarded(lambda: self._collect(states, stored, parts, teacher_tokens))
        return output

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.report.failure = (type(error).__name__, str(error) or repr(error))

    def _teacher(self, final_ND: torch.Tensor) -> Teacher | None:
        """What the layout keeps of the final states; None on a rank that gets no logits.

        On all ranks: ``compute_logits`` is a collective.
        """
        if self._store.layout != "fp8+topk":
            return FinalStates(final_ND)
        vocab_tokens = self._runner.model_config.get_vocab_size()
        return top_logits(self._logits_of, final_ND, self._target_ids_W, self._store.top_k, vocab_tokens)

    def _logits_of(self, final_ND: torch.Tensor) -> torch.Tensor | None:
        return self._model.compute_logits(final_ND.to(self._runner.model_config.dtype))

    def _teacher_tokens(self, teacher: Teacher | None, parts: list[Part]) -> list[list[int]]:
        """What the target may pick after the last row of every part that finishes its prompt, as it is stored."""
        last_rows = [part.first_row + part.tokens - 1 for part in parts if part.finishes]
        if not last_rows or teacher is None:
            return []
        stored = decode_teacher(encode_teacher(self._store.layout, teacher[torch.tensor(last_rows)]))
        if not isinstance(stored, FinalStates):
            return near_stored_choices(stored, self._target_ids_W)
        logits_NV = self._logits_of(stored.final_TD)
        return [] if logits_NV is None else near_choices(logits_NV)

    def _collect(
        self, states: dict[str, Rows], stored_teacher: Rows, parts: list[Part], teacher_tokens: list[list[int]]
    ) -> None:
        layers = [states[f"layer {j}"] for j in self._store.layer_ids]
        stored_aux = {name: torch.cat([layer[name] for layer in layers], dim=1) for name in layers[0]}
        remaining = iter(teacher_tokens)
        for part in parts:
            rows = self._rows.add(part, {**stored_aux, **stored_teacher})
            if rows is not None:
                self._keep_sample(part.request_id, rows, next(remaining))

    def _keep_sample(self, request_id: str, rows: Rows, teacher_tokens: list[int]) -> None:
        token_ids = list(self._runner.requests[request_id].prompt_token_ids or [])
        sample = self._expected.pop(token_hash(token_ids), None)
        if sample is None:
            return  # vLLM's own request, or a sample that was preempted after its last row
        fault = fault_of(rows, len(token_ids), self._store.layer_ids)
        if fault is not None:
            self.report.bad[sample.sample_id] = fault
            return
        self.report.teacher_tokens[sample.sample_id] = teacher_tokens
        self._captured[sample.sample_id] = CapturedSample(
            sample.sample_id, sample.split, sample.source, token_ids, sample.prompt_tokens, rows
        )
