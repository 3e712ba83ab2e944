"""A data root with every stage of a recipe in it, a few bytes each, placed by the stages' own functions."""

import json
import os
from pathlib import Path

from flows.recipes import named
from tasks.hidden_states.index import INDEX_NAME, METADATA_KEY, ShardRecord, StoredSample, append_record, describe
from tasks.hidden_states.layout import StoreFormat
from tasks.stages import (
    answers_stage,
    drafter_stage,
    evaluation_stage,
    responses_stage,
    states_stage,
    training_stage,
)
from tasks.system.files import sha256_of
from tasks.system.manifest import Stage, write_manifest
from tasks.system.run import Product, Run, note_use, product_of
from tasks.system.target import target_stage

STORE = StoreFormat("bf16", [2, 15, 27], 576)


def small_run(data_root: Path, name: str = "smollm2-cpu-20261201-101010", **changes: object) -> Run:
    """A run of the demo's recipe, with some of its fields changed."""
    return Run(
        recipe=named("smollm2-cpu", changes), id="id-1", name=name, data_root=data_root, engine_python=Path("python")
    )


def fill(run: Run) -> dict[str, Stage]:
    """Finish every stage that is not finished, and note their use as a run does; returns them by kind."""
    stages = {"targets": target_stage(run), "drafters": drafter_stage(run), "answers": answers_stage(run)}
    note_use(run, stages["targets"])
    _finish(stages["targets"], {"source": "SmolLM2"}, "model.safetensors")
    drafter = _finish(stages["drafters"], {"checkpoint": "x", "layer_ids": [2, 15, 27]}, "model.safetensors")
    stages["answers"].folder.mkdir(parents=True, exist_ok=True)
    (stages["answers"].folder / "journal.jsonl").write_text('{"sample_id": "1"}\n')
    stages["responses"] = responses_stage(run)
    counts = {"training_samples": 560, "validation_samples": 32, "prompt_tokens": 40_000, "answer_tokens": 60_000}
    responses = _finish(stages["responses"], counts, "responses.jsonl")
    stages["states"] = states_stage(run, responses, drafter)
    states = _capture(stages["states"])
    stages["trained"] = training_stage(run, states, drafter)
    lengths = {"base_acceptance_length": 1.02, "best_acceptance_length": 1.59}
    trained = _finish(stages["trained"], lengths, "best/model.safetensors")
    stages["evaluations"] = evaluation_stage(run, trained)
    arms = [{"name": "base", "acceptance_length": 1.021}, {"name": "trained", "acceptance_length": 1.593}]
    _finish(stages["evaluations"], {"verdict": {"verdict": "better"}, "arms": arms}, "report.md")
    for kind in ("drafters", "responses", "states", "trained", "evaluations"):
        note_use(run, stages[kind])
    return stages


def _finish(stage: Stage, facts: dict[str, object], name: str) -> Product:
    if stage.manifest() is None:
        path = stage.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{stage.name} {stage.digest}\n" * 100)
        write_manifest(stage, [name], facts)
    return product_of(stage)


def _capture(stage: Stage) -> Product:
    if stage.manifest() is None:
        stage.folder.mkdir(parents=True, exist_ok=True)
        for number in range(2):
            write_shard(stage.folder, number)
        facts = {"samples": 592, "tokens": 100_000}
        shards = ["shard-00000.safetensors", "shard-00001.safetensors"]
        write_manifest(stage, [INDEX_NAME, *shards], facts, bookkeeping=(INDEX_NAME,))
    return product_of(stage)


def write_shard(folder: Path, number: int) -> None:
    """A shard as far as its header goes, and its line in the index."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = [StoredSample(f"sample-{number}", "training", "test", 0, 3, "hash", True)]
    header = json.dumps({"__metadata__": {METADATA_KEY: describe(STORE, samples)}}).encode()
    path = folder / f"shard-{number:05d}.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"states" * 1000)
    status = path.stat()
    append_record(folder, ShardRecord(path.name, status.st_size, status.st_mtime_ns, sha256_of(path), STORE, samples))


def flip_byte(path: Path, position: int = -1) -> None:
    """Damage a file so that neither size nor time shows it."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
