"""The extraction child: one prefill of every answered sample, its states into shards.

Run as ``python -m tasks.hidden_states.extract spec.json`` in the engine environment. It captures one planned
shard at a time (``tasks.hidden_states.plan``) and writes it when all of it is there: a stop or a kill loses
the rows of that shard and nothing else.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from tasks import errors
from tasks.errors import BadProduct, DeadlineReached, HeroRunError, RecipeError, Stopped, TransientError
from tasks.hidden_states.checks import check_bad_samples, check_teacher
from tasks.hidden_states.draft_vocab import DRAFT_VOCAB_NAME, DraftVocab, choose_draft_vocab, write_draft_vocab
from tasks.hidden_states.engine import check_engine, prepare_environment, running_engine
from tasks.hidden_states.index import recover, sort_index
from tasks.hidden_states.layout import LAYOUTS, StoreFormat, token_hash
from tasks.hidden_states.plan import PlannedShard, Work, plan_work
from tasks.hidden_states.spec import ExtractionResult, ExtractionSpec
from tasks.hidden_states.target import TargetShape, check_layer_ids, read_target_shape
from tasks.system.child import Reporter, child_main
from tasks.system.responses import Response

_REPORT_SECONDS = 2.0

OnTokens = Callable[[int], None]


def extract(spec: ExtractionSpec, reporter: Reporter) -> ExtractionResult:
    """Capture the shards that are not on disk yet.

    Raises:
        BadProduct: The teacher gate or the statistics check failed, or no sample is left.
        NotEnoughDisk: The next shard would not leave the reserve, or the volume filled up.
        Stopped: SIGTERM came; finished shards are kept.
        DeadlineReached: It is time to wind down; likewise.
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
    plan = capture_plan(spec, shape)
    work = plan_work(spec, shape, recover(spec.out_folder))
    _say_what_is_left(work)
    if reporter.stop_requested:
        raise Stopped("the extraction was stopped before the target was loaded.")
    if work.shards:
        _raise_if_winding_down(spec, work, reporter)
        reporter.progress("loading the target", 0, 0, "samples")
        with running_engine(spec) as llm:
            capture(llm, spec, plan, work, reporter)
    return _result(spec, work)


def _draft_vocab(spec: ExtractionSpec, shape: TargetShape) -> DraftVocab | None:
    """The draft vocabulary of the logits to store, written beside the shards; None where states are stored."""
    if spec.extraction.layout != "fp8+topk":
        return None
    vocab = choose_draft_vocab(spec.drafter_folder, spec.responses_path, spec.draft_vocab_tokens, shape.vocab_tokens)
    write_draft_vocab(spec.out_folder, vocab)
    print(f"logits over a draft vocabulary of {len(vocab.target_ids)} tokens, hash {vocab.sha256}", flush=True)
    return vocab


def _say_what_is_left(work: Work) -> None:
    for file, fault in work.lost.items():
        print(f"{file} {fault}: its samples are captured again.", flush=True)
    print(f"{work.kept_shards} shards are kept, {len(work.shards)} are to be captured.", flush=True)


def capture(llm: Any, spec: ExtractionSpec, plan: dict[str, Any], work: Work, reporter: Reporter) -> None:
    """Capture the shards of ``work`` with a running engine; ``work`` learns what became of their samples.

    Args:
        llm: The engine.
        spec: What is captured.
        plan: From ``capture_plan``.
        work: Which shards.
        reporter: Is told the progress, and asked whether to stop.

    Raises:
        HeroRunError: As in ``extract``.
    """
    try:
        for failure in llm.collective_rpc("capture_start", args=(plan,)):
            _raise(failure)
        progress = _Progress(reporter, work)
        for number, shard in enumerate(work.shards):
            _raise_if_winding_down(spec, work, reporter)
            if not _capture_shard(llm, spec, shard, work, progress):
                raise Stopped(
                    f"the extraction was stopped with {len(work.shards) - number} of {len(work.shards)} shards to go; "
                    "the others are on disk."
                )
        llm.collective_rpc("capture_finish")
    except HeroRunError:
        raise
    except Exception as error:
        if reporter.stop_requested:  # the signal went to the whole process group, vLLM included
            raise Stopped("the extraction was stopped; its finished shards are kept.") from error
        raise TransientError(f"vLLM broke during the extraction: {error!r}. The cause is in the log above.") from error


def _raise_if_winding_down(spec: ExtractionSpec, work: Work, reporter: Reporter) -> None:
    if reporter.is_winding_down:
        window = spec.window
        of_window = "" if window.is_whole else f" of window {window.index + 1} of {window.count}"
        raise DeadlineReached(f"extraction {100 * work.done_tokens / work.total_tokens:.0f} %{of_window}")


def capture_plan(spec: ExtractionSpec, shape: TargetShape) -> dict[str, Any]:
    """What ``capture.CapturePlan`` takes. The draft vocabulary, if it needs one, is written beside the shards.

    Raises:
        BadInput: The base drafter's vocabulary map is unsound, or there is no answer to make one from.
        RecipeError: The layout is left open.
    """
    if spec.extraction.layout == "auto":
        raise RecipeError(
            "the extraction was told to store states in layout 'auto', but it needs the one that was chosen. "
            f"Name one of {', '.join(LAYOUTS)}."
        )
    store = StoreFormat(spec.extraction.layout, list(spec.layer_ids), shape.hidden_size)
    vocab = _draft_vocab(spec, shape)
    if vocab is not None:
        top_k = min(spec.extraction.top_k, len(vocab.target_ids))
        store = replace(store, top_k=top_k, vocab_map_sha256=vocab.sha256)
    return {
        "folder": str(spec.out_folder),
        "store": asdict(store),
        "reserve_bytes": spec.reserve_bytes,
        "draft_target_ids": vocab.target_ids if vocab is not None else [],
    }


class _Progress:
    """Tokens so far, those of the shard in work included, reported every few seconds."""

    def __init__(self, reporter: Reporter, work: Work) -> None:
        self._reporter, self._work, self._before_tokens = reporter, work, work.done_tokens
        self._started = self._reported = time.monotonic()
        self._report(0, 0.0)

    @property
    def stop_requested(self) -> bool:
        return self._reporter.stop_requested

    def tell(self, shard_tokens: int) -> None:
        """``shard_tokens`` of the shard in work are captured."""
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS or self._work.done_tokens == self._work.total_tokens:
            self._reported = now
            new_tokens = self._work.done_tokens - self._before_tokens + shard_tokens
            self._report(shard_tokens, new_tokens / (now - self._started))

    def _report(self, shard_tokens: int, rate: float) -> None:
        work, figures = self._work, {"tokens_per_second": round(rate, 1), "bad_samples": len(self._work.bad)}
        self._reporter.progress("extraction", work.done_tokens + shard_tokens, work.total_tokens, "tokens", **figures)


def _capture_shard(llm: Any, spec: ExtractionSpec, shard: PlannedShard, work: Work, progress: _Progress) -> bool:
    """Prefill a shard's samples, check what came, write it; False when a stop was asked for on the way."""
    llm.collective_rpc("capture_expect", args=([_expected(r) for r in shard.samples],))
    picked = _prefill(llm, shard, progress)
    if picked is None:
        return False
    report = llm.collective_rpc("capture_report")[0]
    _raise(report["failure"])
    teacher = report["teacher_tokens"]
    # In the order of the plan, not in that in which the prompts were finished.
    agrees = {r.sample_id: picked[r.sample_id] in teacher[r.sample_id] for r in shard.samples if r.sample_id in teacher}
    handed = {**agrees, **report["bad"]}
    lost = {r.sample_id: "vLLM handed over no rows of it" for r in shard.samples if r.sample_id not in handed}
    bad = {**report["bad"], **lost}
    work.bad.update(bad)
    work.agrees.update(agrees)
    check_bad_samples(work.bad, len(work.bad) + len(work.agrees))
    check_teacher(work.agrees, spec.out_folder)
    if agrees:
        _raise(llm.collective_rpc("capture_write", args=(shard.file, agrees, bad))[0])
        work.made_shards += 1
    work.done_tokens += shard.tokens
    progress.tell(0)
    return True


def _ids(response: Response) -> list[int]:
    return [*response.prompt_token_ids, *response.response_token_ids]


def _expected(response: Response) -> dict[str, Any]:
    """What ``capture.ExpectedSample`` takes."""
    return {
        "sample_id": response.sample_id,
        "split": response.split,
        "source": response.source,
        "prompt_tokens": len(response.prompt_token_ids),
        "token_hash": token_hash(_ids(response)),
    }


def _prefill(llm: Any, shard: PlannedShard, progress: _Progress) -> dict[str, int] | None:
    """Prefill the samples; each one's next token by sample id, or None when a stop was asked for.

    All requests are queued before the first step, so that the batches depend on the samples alone. Stepping by
    hand, instead of ``llm.generate``, is what lets a stop and a report come in between.
    """
    from vllm import SamplingParams, TokensPrompt

    greedy = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    prompts = [TokensPrompt(prompt_token_ids=_ids(r)) for r in shard.samples]
    requests = llm.enqueue(prompts, greedy, use_tqdm=False)
    picked: dict[str, int] = {}
    done_tokens = 0
    while llm.llm_engine.has_unfinished_requests():
        if progress.stop_requested:
            llm.llm_engine.abort_request(requests, internal=True)
            return None
        for output in llm.llm_engine.step():
            picked[token_hash(output.prompt_token_ids)] = output.outputs[0].token_ids[0]
            done_tokens += len(output.prompt_token_ids)
        progress.tell(done_tokens)
    return {r.sample_id: picked[token_hash(_ids(r))] for r in shard.samples}


def _raise(failure: tuple[str, str] | None) -> None:
    """Raise what a worker reported; an error of a foreign class (a disk's, say) may pass with another try."""
    if failure is None:
        return
    name, message = failure
    known = vars(errors).get(name)
    if known is None:
        raise TransientError(f"the capture inside vLLM failed with {name}: {message}")
    raise known(message)


def _result(spec: ExtractionSpec, work: Work) -> ExtractionResult:
    records = sort_index(spec.out_folder)
    if not records:
        raise BadProduct(f"{spec.out_folder}: none of the samples has states that can be right: {work.bad}.")
    return ExtractionResult(
        samples=sum(len(record.samples) for record in records),
        tokens=sum(sample.length for record in records for sample in record.samples),
        states_bytes=sum(record.size_bytes for record in records),
        teacher_agreement=check_teacher(work.agrees, spec.out_folder),
        final_is_normed=records[0].format.final_is_normed,
        shards={record.file: record.sha256 for record in records},
        draft_vocab_files=[DRAFT_VOCAB_NAME] if records[0].format.vocab_map_sha256 else [],
        skipped={**work.skipped, **work.bad},
        kept_shards=work.kept_shards,
        made_shards=work.made_shards,
        remade=work.lost,
    )


if __name__ == "__main__":
    child_main(ExtractionSpec, extract)
