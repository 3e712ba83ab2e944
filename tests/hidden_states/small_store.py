"""A small store of random states, written in whole or killed on the way: ``python -m ... <folder> <signal at>``."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tasks.hidden_states import index, shards
from tasks.hidden_states.draft_vocab import DraftVocab
from tasks.hidden_states.encoding import encode_aux, encode_teacher
from tasks.hidden_states.layout import Layout, StoreFormat
from tasks.hidden_states.reader import StateReader
from tasks.hidden_states.shards import CapturedSample, ShardWriter
from tasks.hidden_states.teacher import FinalStates, Teacher
from tasks.hidden_states.top_logits import top_logits
from tasks.system.files import sha256_of

D, LAYERS = 32, [1, 2, 4]
STORE = StoreFormat("bf16", LAYERS, D)
VOCAB = DraftVocab(vocab_tokens=200, target_ids=list(range(3, 103)))
TOP_K = 64
STORES = {
    "bf16": STORE,
    "fp8": StoreFormat("fp8", LAYERS, D),
    "fp8+topk": StoreFormat("fp8+topk", LAYERS, D, top_k=TOP_K, vocab_map_sha256=VOCAB.sha256),
}
SHARD_SAMPLES, SAMPLES = 2, 6


def make_states(number: int, tokens: int = 20, width: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    """Random auxiliary layers and final states in bf16, always the same for a number."""
    generator = torch.Generator().manual_seed(number)
    aux_TAD = torch.randn(tokens, len(LAYERS) * width, generator=generator).bfloat16()
    return aux_TAD, torch.randn(tokens, width, generator=generator).bfloat16()


def make_teacher(layout: str, final_TD: torch.Tensor) -> Teacher:
    """The teacher of a layout, with a random head of ``VOCAB``."""
    if layout != "fp8+topk":
        return FinalStates(final_TD)
    head_VD = torch.randn(VOCAB.vocab_tokens, final_TD.shape[1], generator=torch.Generator().manual_seed(-1))
    ids_W = torch.tensor(VOCAB.target_ids)
    teacher = top_logits(lambda block_CD: block_CD.float() @ head_VD.T, final_TD, ids_W, TOP_K, VOCAB.vocab_tokens)
    assert teacher is not None
    return teacher


def make_sample(number: int, tokens: int = 20, width: int = D, layout: Layout = "bf16") -> CapturedSample:
    """Always the same for a number."""
    aux_TAD, final_TD = make_states(number, tokens, width)
    states = encode_aux(layout, aux_TAD, len(LAYERS)) | encode_teacher(layout, make_teacher(layout, final_TD))
    ids = torch.randint(0, 163840, (tokens,), generator=torch.Generator().manual_seed(number)).tolist()
    split = "validation" if number % 5 == 0 else "training"
    return CapturedSample(f"sample-{number:016x}", split, "tests", ids, tokens // 2, states)


def plan(numbers: Iterable[int] = range(SAMPLES)) -> dict[str, list[int]]:
    """File name to numbers of its samples."""
    numbers = list(numbers)
    groups = [numbers[i : i + SHARD_SAMPLES] for i in range(0, len(numbers), SHARD_SAMPLES)]
    return {f"shard-{group[0]:06d}.safetensors": group for group in groups}


def write(folder: Path, numbers: Iterable[int] = range(SAMPLES), store: StoreFormat = STORE) -> list[str]:
    """Write what is missing of a plan; the names of the shards that were written."""
    writer = ShardWriter(folder, store, reserve_bytes=0)
    kept = {record.file for record in writer.records}
    missing = {file: group for file, group in plan(numbers).items() if file not in kept}
    for file, group in missing.items():
        writer.write(file, [make_sample(number, layout=store.layout) for number in group])
    return list(missing)


def shard_files(folder: Path) -> list[Path]:
    """Its shard files, set-aside ones included."""
    return sorted(folder.glob("shard-*"))


def checksums(folder: Path) -> dict[str, str]:
    """File name of a shard to its sha256."""
    return {path.name: sha256_of(path) for path in shard_files(folder)}


def read_all(folder: Path) -> set[str]:
    """Read every sample; their ids."""
    reader = StateReader(folder)
    return {reader.read(entry).sample_id for entry in reader.samples}


def kill_at_call(module: Any, name: str, call: int, after: bool) -> None:
    """Let this process die by SIGKILL just before or just after the given call of a function."""
    intact: Callable[..., Any] = getattr(module, name)
    calls = 0

    def killing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = intact(*args, **kwargs)
        if calls == call and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, killing)


def kill_in_the_middle(shard: int) -> None:
    """Die when half of a shard's tensors are written and flushed."""
    intact, calls = ShardWriter._payload, 0

    def killing(self: ShardWriter, samples: Any) -> Any:
        nonlocal calls
        calls += 1
        for number, tensor in enumerate(intact(self, samples)):
            if calls == shard and number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            yield tensor

    ShardWriter._payload = killing  # type: ignore[method-assign]


def kill_with_half_a_line(call: int) -> None:
    """Die when half of a line of the index is written."""
    intact, calls = index._write_whole, 0

    def killing(out: Any, line: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            out.write(line[: len(line) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        intact(out, line)

    index._write_whole = killing


MOMENTS: dict[str, Callable[[], None]] = {
    "before the first byte": lambda: kill_at_call(shards, "_write_fsynced", 2, after=False),
    "in the middle of a shard": lambda: kill_in_the_middle(2),
    "before the rename": lambda: kill_at_call(shards, "publish", 2, after=False),
    "between rename and index": lambda: kill_at_call(shards, "append_record", 2, after=False),
    "in the middle of an index line": lambda: kill_with_half_a_line(2),
    "after the index": lambda: kill_at_call(shards, "append_record", 2, after=True),
}


if __name__ == "__main__":
    MOMENTS[sys.argv[2]]()
    write(Path(sys.argv[1]))
