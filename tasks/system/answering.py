"""Inference without Prefect: prompts in, a journal that grows, a finished set with its data card out."""

import contextlib
import dataclasses
import statistics
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.errors import BadProduct, DeadlineReached
from tasks.recipe import Inference, Server
from tasks.system.deadline import FOR_EVER, Until
from tasks.system.engine_child import ETA_SECONDS, OnProgress, Progress
from tasks.system.files import write_atomically
from tasks.system.generation import Answer, Rejected, Sampling, Tally, ask_all
from tasks.system.journal import Journal, read_answers
from tasks.system.prompts import Prompt, PromptSets
from tasks.system.quality import Quality
from tasks.system.responses import RESPONSES_NAME, Response
from tasks.system.restarts import Restarts, keep_asking
from tasks.system.vllm_server import Endpoint

DATA_CARD_NAME = "README.md"
LEAST_ANSWERED_SHARE = 0.5
"""Of the prompts that were asked."""
LEAST_SAMPLES = {"training": 8, "validation": 1}
"""Of a set that a deadline cut short: with less there is nothing to train on, or to choose the best by."""


@dataclass(frozen=True, kw_only=True)
class AnswerFacts:
    """What the set holds."""

    training_samples: int
    validation_samples: int
    prompt_tokens: int
    answer_tokens: int
    mean_answer_tokens: float
    truncated_share: float
    looping_share: float
    """Answers whose end repeats itself."""
    thinking_only_share: float
    """Answers whose whole budget went into thinking; kept, since their tokens teach as well as others."""
    rejected: dict[str, int]
    retries: dict[str, int]
    tokens_per_second: float
    unasked_prompts: int
    """Prompts that a deadline left no time for; of the others each is answered or rejected."""


def sampling_of(spec: Inference, server: Server) -> Sampling:
    """The request settings of the inference stage."""
    return Sampling(
        max_new_tokens=spec.max_new_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        in_flight=spec.in_flight,
        request_timeout_seconds=spec.request_timeout_seconds,
        request_retries=spec.request_retries,
        token_stall_seconds=server.token_stall_seconds,
    )


def unanswered(prompts: PromptSets, answered_ids: Container[str]) -> list[Prompt]:
    """The training and validation prompts that are not answered yet."""
    return [p for p in prompts.validation + prompts.training if p.sample_id not in answered_ids]


def answer_prompts(
    prompts: PromptSets,
    endpoint: Endpoint,
    spec: Inference,
    server: Server,
    journal: Journal,
    restarts: Restarts,
    on_progress: OnProgress,
    until: Until = FOR_EVER,
) -> Tally:
    """Ask every training and validation prompt that the journal lacks, whatever becomes of the server meanwhile.

    A deadline ends it early, as does a ``DeadlineReached`` of ``restarts.reopen``.

    Raises:
        GaveUp: The server died too often; what was answered is in the journal.
        BadProduct: Too many answers are cut or looping; likewise.
        NotEnoughDisk: The volume is about to be full; likewise.
        Stopped: The run is ending; likewise.
    """
    tally, quality, refused = Tally(), Quality(), set[str]()
    missing = unanswered(prompts, journal.sample_ids)
    wanted = prompts.validation + prompts.training
    total, kept = len(wanted), len(wanted) - len(missing)
    for response in read_answers(journal.path, [p.sample_id for p in wanted]):
        quality.count(response)

    def keep(outcome: Answer | Rejected, tally: Tally) -> None:
        if isinstance(outcome, Answer):
            response = _response(outcome)
            journal.append(response)
            quality.count(response)
            quality.require(spec)
        else:
            refused.add(outcome.prompt.sample_id)
        figures = {"tokens_per_second": tally.tokens_per_second}
        figures |= outlook(tally, total - kept - tally.done, spec.max_new_tokens)
        on_progress(Progress("answering", kept + tally.done, total, "prompts", figures))

    def left() -> list[Prompt]:
        return [p for p in unanswered(prompts, journal.sample_ids) if p.sample_id not in refused]

    def ask(live: Endpoint) -> None:
        ask_all(left(), live, sampling_of(spec, server), keep, tally, until)

    if missing:
        with contextlib.suppress(DeadlineReached):
            keep_asking(endpoint, restarts, ask, lambda: tally.answered)
    tally.unasked = len(left())
    return tally


def outlook(tally: Tally, left: int, most_tokens: int) -> dict[str, float]:
    """The mean length to expect of an answer, and the seconds until all are there.

    Short answers are finished first, so their mean promises too much. All tokens that were made, those of requests
    in flight included, over the answers that are finished: the estimate for lengths that are still censored.

    Args:
        tally: So far.
        left: Prompts that are not dealt with, in flight or not.
        most_tokens: Longest answer.
    """
    made = tally.answer_tokens + tally.tokens_in_flight
    if not tally.answered or not tally.seconds or not made:
        return {}
    mean = min(made / tally.answered, most_tokens)
    left_tokens = max(0.0, mean * left - tally.tokens_in_flight)
    return {"expected_answer_tokens": mean, ETA_SECONDS: left_tokens / (made / tally.seconds)}


def _response(answer: Answer) -> Response:
    # The journal serves every set with this model and sampling, so it does not know the splits.
    return Response(
        sample_id=answer.prompt.sample_id,
        split="training",
        source=answer.prompt.source,
        prompt_token_ids=answer.prompt_token_ids,
        response_token_ids=answer.response_token_ids,
        finish_reason=answer.finish_reason,
        text=answer.text,
        reasoning=answer.reasoning,
    )


def finish_set(prompts: PromptSets, journal_path: Path, folder: Path, tally: Tally) -> AnswerFacts:
    """Write the finished set: the journal's answers to these prompts in a fixed order, and a data card.

    The file is JSON lines, so that ``datasets.load_dataset("json", data_files=...)`` opens it and the engine
    environment, which has no ``datasets``, can stream it.

    Raises:
        BadProduct: Too few prompts were answered to go on; the reasons are in the message.
    """
    splits: dict[str, Literal["training", "validation"]] = {p.sample_id: "validation" for p in prompts.validation}
    splits |= {p.sample_id: "training" for p in prompts.training}
    answered = [
        dataclasses.replace(response, split=splits[response.sample_id])
        for response in read_answers(journal_path, list(splits))
        if response.response_token_ids
    ]
    _require_enough(answered, len(splits), tally)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RESPONSES_NAME, "".join(response.to_line() + "\n" for response in answered))
    facts = _facts(answered, tally)
    write_atomically(folder / DATA_CARD_NAME, data_card(answered, facts, prompts.skipped))
    return facts


def _require_enough(answered: list[Response], prompts: int, tally: Tally) -> None:
    counts = Counter[str](response.split for response in answered)
    if tally.unasked and any(counts[split] < least for split, least in LEAST_SAMPLES.items()):
        raise BadProduct(
            f"the deadline left {tally.unasked} of {prompts} prompts unasked, and the answers are too few to go "
            f"on with: {counts['training']} for training and {counts['validation']} for validation, at least "
            f"{LEAST_SAMPLES['training']} and {LEAST_SAMPLES['validation']} are needed. Start again with more time: "
            "the answers are kept, and only the other prompts are asked."
        )
    if len(answered) < LEAST_ANSWERED_SHARE * (prompts - tally.unasked):
        raise BadProduct(
            f"only {len(answered)} of {prompts - tally.unasked} prompts were answered; at least half are needed. "
            f"The server refused the others: {dict(tally.rejected)}."
        )


def _facts(answered: list[Response], tally: Tally) -> AnswerFacts:
    splits = Counter(response.split for response in answered)
    lengths = [len(response.response_token_ids) for response in answered]
    quality = Quality()
    for response in answered:
        quality.count(response)
    return AnswerFacts(
        training_samples=splits["training"],
        validation_samples=splits["validation"],
        prompt_tokens=sum(len(response.prompt_token_ids) for response in answered),
        answer_tokens=sum(lengths),
        mean_answer_tokens=statistics.mean(lengths),
        truncated_share=quality.share(quality.truncated),
        looping_share=quality.share(quality.looping),
        thinking_only_share=quality.share(quality.thinking_only),
        rejected=dict(tally.rejected),
        retries=dict(tally.retries),
        tokens_per_second=tally.tokens_per_second,
        unasked_prompts=tally.unasked,
    )


def data_card(answered: list[Response], facts: AnswerFacts, skipped_rows: dict[str, int]) -> str:
    """The set's README: what is in it, by source and finish reason, and its lengths."""
    lengths: dict[str, list[int]] = {}
    for response in answered:
        lengths.setdefault(response.source, []).append(len(response.response_token_ids))
    finish = Counter(response.finish_reason for response in answered)
    return "\n".join(
        [
            "# Answers of the target model",
            "",
            f'Exact token ids, one sample a line: `load_dataset("json", data_files="{RESPONSES_NAME}")`.',
            "",
            f"- samples: {facts.training_samples} for training, {facts.validation_samples} for validation",
            f"- tokens: {facts.prompt_tokens} of prompts, {facts.answer_tokens} of answers "
            f"({facts.mean_answer_tokens:.1f} an answer)",
            f"- cut at the limit: {facts.truncated_share:.1%}; repeating themselves: {facts.looping_share:.1%}; "
            f"thinking only: {facts.thinking_only_share:.1%}",
            "- finish reasons: " + ", ".join(f"{reason} {count}" for reason, count in finish.most_common()),
            f"- prompts that the server refused: {facts.rejected or 'none'}; retries: {facts.retries or 'none'}",
            f"- prompts that a deadline left no time for: {facts.unasked_prompts or 'none'}",
            f"- prompt rows skipped: {skipped_rows or 'none'}",
            "",
            "| source | samples | median answer tokens | longest |",
            "|---|---|---|---|",
            *(f"| {s} | {len(n)} | {statistics.median(n):.0f} | {max(n)} |" for s, n in sorted(lengths.items())),
            "",
        ]
    )
