"""Samples of real text for a real small target, and the spec that captures them."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from tasks.errors import HeroRunError
from tasks.hidden_states.extract import capture, capture_plan
from tasks.hidden_states.index import recover
from tasks.hidden_states.plan import Work, plan_work
from tasks.hidden_states.spec import ExtractionSpec
from tasks.hidden_states.target import read_target_shape
from tasks.recipe import Engine, Extraction, ModelFacts, ModelSource, Target
from tasks.system.child import Reporter
from tasks.system.responses import RESPONSES_NAME, Response

LAYER_IDS = [2, 15, 27]
DRAFT_VOCAB_TOKENS = 1000
STEP_TOKENS = 256
"""Of the tests' engine: longer samples arrive in chunks, shorter ones share steps."""


def make_responses(target_folder: Path) -> list[Response]:
    """28 samples of English text, 40 to 580 tokens: the standard library's own help."""
    from pydoc_data.topics import topics

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_folder)
    long_texts = [text for _, text in sorted(topics.items()) if len(text) > 3500]
    samples = []
    for number, text in enumerate(long_texts[:28]):
        ids = tokenizer(text)["input_ids"][: 40 + 20 * number]
        sample = Response(
            sample_id=hashlib.sha256(text.encode()).hexdigest()[:16],
            split="validation" if number % 8 == 0 else "training",
            source="help",
            prompt_token_ids=ids[:30],
            response_token_ids=ids[30:],
            finish_reason="stop",
        )
        samples.append(sample)
    return samples


def make_spec(target_folder: Path, responses: list[Response], folder: Path, **extraction: Any) -> ExtractionSpec:
    """A spec with its responses file, states under ``folder/states``."""
    shape = read_target_shape(target_folder)
    facts = ModelFacts(
        weights_bytes=1, hidden_size=shape.hidden_size, layers=shape.decoder_layers, vocab_tokens=shape.vocab_tokens
    )
    source = ModelSource(kind="folder", name=str(target_folder))
    (folder / RESPONSES_NAME).write_text("".join(r.to_line() + "\n" for r in responses))
    engine = Engine(environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    spec = ExtractionSpec(
        target_folder=target_folder,
        responses_path=folder / RESPONSES_NAME,
        out_folder=folder / "states",
        layer_ids=LAYER_IDS,
        reserve_bytes=0,
        target=Target(source=source, window_tokens=1024, snapshot=facts),
        extraction=Extraction(engine=engine),
        drafter_folder=None,
        draft_vocab_tokens=DRAFT_VOCAB_TOKENS,
    )
    return dataclasses.replace(spec, extraction=dataclasses.replace(spec.extraction, **extraction))


def shortened(responses: list[Response], tokens: int, number: int | None = None) -> list[Response]:
    """The first samples, all but the answer's first tokens cut off."""
    return [dataclasses.replace(r, response_token_ids=r.response_token_ids[:tokens]) for r in responses[:number]]


def run_capture(llm: Any, spec: ExtractionSpec, folder: Path, reporter: Reporter | None = None) -> Work:
    """Capture with a running engine what the folder of the spec lacks."""
    shape = read_target_shape(spec.target_folder)
    spec.out_folder.mkdir(exist_ok=True)
    work = plan_work(spec, shape, recover(spec.out_folder))
    try:
        capture(llm, spec, capture_plan(spec, shape), work, reporter or Reporter(folder / "progress.jsonl"))
    except HeroRunError:
        llm.collective_rpc("capture_finish")
        raise
    return work
