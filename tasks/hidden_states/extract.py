"""The extraction child: one prefill of every answered sample, its states into shards.

Run as ``python -m tasks.hidden_states.extract spec.json`` in the engine environment.
"""

import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks import errors
from tasks.errors import HeroRunError, Stopped, TransientError
from tasks.hidden_states.checks import check_bad_samples, check_teacher
from tasks.hidden_states.engine import check_engine, prepare_environment, running_engine
from tasks.hidden_states.index import read_index, recover
from tasks.hidden_states.layout import StoreFormat, token_hash
from tasks.hidden_states.plan import Work, note_teacher, plan_work
from tasks.hidden_states.spec import ExtractionResult, ExtractionSpec
from tasks.hidden_states.target import TargetShape, check_layer_ids, read_target_shape
from tasks.system.child import Reporter, child_main
from tasks.system.responses import Response

_REPORT_SECONDS = 2.0


def extract(spec: ExtractionSpec, reporter: Reporter) -> ExtractionResult:
    """Capture the samples that are not on disk yet.

    Raises:
        BadProduct: The teacher gate or the statistics check failed.
        NotEnoughDisk: The next shard would not leave the reserve.
        Stopped: SIGTERM came; what was captured is on disk.
        BadInput: The target's config or the responses cannot be used.
        RecipeError: The layer ids do not fit the target.
        EngineRejected: vLLM is not one that the hooks know, or refused the model or an argument.
        TransientError: vLLM broke.
    """
    shape = read_target_shape(spec.target_folder)
    check_layer_ids(spec.layer_ids, shape)
    prepare_environment(spec)
    check_engine()
    spec.out_folder.mkdir(parents=True, exist_ok=True)
    work = plan_work(spec, shape, recover(spec.out_folder))
    if work.samples:
        reporter.progress("loading the target", 0, 0, "samples")
        with running_engine(spec) as llm:
            capture(llm, spec, shape, work, reporter)
    return _result(spec.out_folder, work)


def capture(llm: Any, spec: ExtractionSpec, shape: TargetShape, work: Work, reporter: Reporter) -> None:
    """Capture the samples of ``work`` with a running engine; ``work`` learns what became of them.

    Raises:
        HeroRunError: As in ``extract``.
    """
    try:
        for failure in llm.collective_rpc("capture_start", args=(_capture_plan(spec, shape),)):
            _raise(failure)
        _capture_chunks(llm, spec, work, reporter)
    except HeroRunError:
        raise
    except Exception as error:
        if reporter.stop_requested:  # the signal went to the whole process group, vLLM included
            raise Stopped("the extraction was stopped; its finished shards are kept.") from error
        raise TransientError(f"vLLM broke during the extraction: {error!r}. The cause is in the log above.") from error


def _capture_plan(spec: ExtractionSpec, shape: TargetShape) -> dict[str, Any]:
    return {
        "folder": str(spec.out_folder),
        "store": asdict(StoreFormat(spec.extraction.layout, list(spec.layer_ids), shape.hidden_size)),
        "shard_bytes": spec.extraction.shard_bytes,
        "reserve_bytes": spec.reserve_bytes,
    }


def _capture_chunks(llm: Any, spec: ExtractionSpec, work: Work, reporter: Reporter) -> None:
    """Ask chunk by chunk: small enough that progress and a stop come every few seconds."""
    queue, started, done_before = deque(work.samples), time.monotonic(), work.done_tokens
    step_tokens = chunk_tokens = spec.extraction.max_batched_tokens
    reporter.progress("extraction", work.done_tokens, work.total_tokens, "tokens", tokens_per_second=0.0)
    while queue and not reporter.stop_requested:
        _ask(llm, spec.out_folder, _take(queue, chunk_tokens), work)
        rate = (work.done_tokens - done_before) / (time.monotonic() - started)
        chunk_tokens = max(step_tokens, int(rate * _REPORT_SECONDS))
        figures = {"tokens_per_second": round(rate, 1), "bad_samples": len(work.bad)}
        reporter.progress("extraction", work.done_tokens, work.total_tokens, "tokens", **figures)
    _raise(llm.collective_rpc("capture_finish")[0]["failure"])
    if queue:
        raise Stopped(f"the extraction was stopped with {len(queue)} samples to go; the others are on disk.")


def _take(queue: deque[Response], tokens: int) -> list[Response]:
    chunk = [queue.popleft()]
    while queue and sum(r.length_tokens for r in chunk) < tokens:
        chunk.append(queue.popleft())
    return chunk


def _ask(llm: Any, folder: Path, chunk: list[Response], work: Work) -> None:
    """Prefill a chunk of samples and take note of what became of each one."""
    from vllm import SamplingParams, TokensPrompt

    ids = {r.sample_id: [*r.prompt_token_ids, *r.response_token_ids] for r in chunk}
    expected = [
        {
            "sample_id": r.sample_id,
            "split": r.split,
            "source": r.source,
            "prompt_tokens": len(r.prompt_token_ids),
            "token_hash": token_hash(ids[r.sample_id]),
        }
        for r in chunk
    ]
    llm.collective_rpc("capture_expect", args=(expected,))
    prompts = [TokensPrompt(prompt_token_ids=ids[r.sample_id]) for r in chunk]
    greedy = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    report = llm.collective_rpc("capture_report")[0]
    _raise(report["failure"])
    picked = {r.sample_id: output.outputs[0].token_ids[0] for r, output in zip(chunk, outputs, strict=True)}
    agrees = {sample_id: token == picked[sample_id] for sample_id, token in report["teacher_tokens"].items()}
    lost = {key: "vLLM handed over no rows of it" for key in ids if key not in agrees and key not in report["bad"]}
    work.bad.update({**report["bad"], **lost})
    work.agrees.update(agrees)
    work.tried += len(chunk)
    work.done_tokens += sum(r.length_tokens for r in chunk)
    note_teacher(folder, agrees)
    check_bad_samples(work.bad, work.tried)
    check_teacher(work.agrees, folder)


def _raise(failure: tuple[str, str] | None) -> None:
    """Raise what a worker reported; an error of a foreign class (a disk's, say) may pass with another try."""
    if failure is None:
        return
    name, message = failure
    known = vars(errors).get(name)
    if known is None:
        raise TransientError(f"the capture inside vLLM failed with {name}: {message}")
    raise known(message)


def _result(folder: Path, work: Work) -> ExtractionResult:
    records = read_index(folder)
    return ExtractionResult(
        samples=sum(len(record.samples) for record in records),
        tokens=sum(sample.length for record in records for sample in record.samples),
        states_bytes=sum(record.size_bytes for record in records),
        teacher_agreement=check_teacher(work.agrees, folder),
        shards={record.file: record.sha256 for record in records},
        skipped={**work.skipped, **work.bad},
    )


if __name__ == "__main__":
    child_main(ExtractionSpec, extract)
