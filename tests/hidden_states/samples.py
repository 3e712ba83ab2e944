"""Samples of real text for a real small target, and the spec that captures them."""

import dataclasses
import hashlib
from pathlib import Path

from tasks.hidden_states.spec import ExtractionSpec
from tasks.hidden_states.target import read_target_shape
from tasks.recipe import Engine, Extraction, ModelFacts, ModelSource, Target
from tasks.system.responses import RESPONSES_NAME, Response

LAYER_IDS = [2, 15, 27]


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


def make_spec(target_folder: Path, responses: list[Response], folder: Path, **extraction: int) -> ExtractionSpec:
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
    )
    return dataclasses.replace(spec, extraction=dataclasses.replace(spec.extraction, **extraction))
