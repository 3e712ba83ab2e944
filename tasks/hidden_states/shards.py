"""Writing captured samples into bounded safetensors shards, many samples each.

Shape legend: T tokens of a sample.
"""

import errno
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.errors import BadProduct, NotEnoughDisk
from tasks.hidden_states.index import (
    CORRUPT_SUFFIX,
    METADATA_KEY,
    ShardRecord,
    StoredSample,
    append_record,
    describe,
    recover,
)
from tasks.hidden_states.layout import DTYPE_BYTES, LOSS_MASK, TOKEN_IDS, StoreFormat, tensor_shape, token_hash
from tasks.system.files import PARTIAL_SUFFIX, publish

_TORCH_DTYPES = {
    "I32": torch.int32,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}


@dataclass(frozen=True)
class CapturedSample:
    """One sample's rows on their way into a shard, all on the CPU."""

    sample_id: str
    split: str
    source: str
    token_ids: list[int]
    prompt_tokens: int
    """The first tokens that are not part of the answer."""
    states: dict[str, torch.Tensor]
    """Auxiliary layers and teacher as the layout stores them (``tasks.hidden_states.encoding``)."""
    teacher_agrees: bool = True
    """Whether its last state, through the lm_head, gives the token that vLLM picks."""


class ShardWriter:
    """Writes whole shards, each under the name that its plan gave it.

    A shard is written aside, fsynced, renamed, and only then listed in the index, so that a crash
    at any moment loses at most the shard that was being written.
    """

    def __init__(self, folder: Path, store: StoreFormat, reserve_bytes: int) -> None:
        """Take over a folder: valid shards in it are kept, everything else that looks like one is removed.

        Args:
            folder: Where shards and index go; made when missing.
            store: What the shards hold.
            reserve_bytes: Free space that every shard must leave on the volume.

        Raises:
            BadProduct: The folder holds shards of another format, or its index is damaged.
            NotEnoughDisk: The index could not be rewritten.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.records = recover(folder).records
        for record in self.records:
            if record.format != store:
                raise BadProduct(
                    f"{folder / record.file} holds {record.format}, but {store} is to be written. "
                    "Name another folder, or delete this one."
                )
        self._folder, self._store, self._reserve_bytes = folder, store, reserve_bytes

    def write(self, file: str, samples: Sequence[CapturedSample], rejected: Mapping[str, str] | None = None) -> None:
        """Write one shard, which replaces a corrupt one of that name.

        Args:
            file: Name of the shard, ``shard-*.safetensors``.
            samples: What it holds, at least one, in this order.
            rejected: Samples that were planned for it and have no states: id to the reason.

        Raises:
            BadProduct: The rows do not fit the token ids or the format.
            NotEnoughDisk: The shard would not leave the reserve, or the volume filled up meanwhile.
                What was written before stays valid; this shard is captured again.
        """
        for sample in samples:
            _check_rows(sample, self._store)
        path, stored = self._folder / file, _placed(samples)
        path.with_name(file + CORRUPT_SUFFIX).unlink(missing_ok=True)  # now, for it takes the room of its successor
        tokens = sum(sample.length for sample in stored)
        header = _header(self._store, stored, tokens)
        size_bytes = len(header) + tokens * self._token_bytes
        self._guard(size_bytes)
        try:
            sha256 = self._write_file(path, header, samples)
            status = path.stat()
            record = ShardRecord(
                file, status.st_size, status.st_mtime_ns, sha256, self._store, stored, dict(rejected or {})
            )
            append_record(self._folder, record)
        except OSError as error:
            for unlisted in (path, path.with_name(file + PARTIAL_SUFFIX)):
                unlisted.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise self._not_enough(size_bytes, shutil.disk_usage(self._folder).free) from error
        self.records.append(record)

    @property
    def _token_bytes(self) -> int:
        return sum(DTYPE_BYTES[dtype] * values for dtype, values in self._store.tensors().values())

    def _guard(self, size_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._folder).free
        if free_bytes - size_bytes < self._reserve_bytes:
            raise self._not_enough(size_bytes, free_bytes)

    def _not_enough(self, size_bytes: int, free_bytes: int) -> NotEnoughDisk:
        return NotEnoughDisk(
            f"the next shard of hidden states needs {size_bytes:,} B and must leave {self._reserve_bytes:,} B "
            f"in reserve, but {self._folder} has {free_bytes:,} B free. The {len(self.records)} shards "
            "already there are valid: make room and run again, it goes on from them."
        )

    def _write_file(self, path: Path, header: bytes, samples: Sequence[CapturedSample]) -> str:
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        sha256 = _write_fsynced(partial, header, self._payload(samples))
        publish(partial, path)
        return sha256

    def _payload(self, samples: Sequence[CapturedSample]) -> Iterable[torch.Tensor]:
        """The tensors in file order, one by one: no second copy of a shard in memory."""
        for name, (dtype, _) in self._store.tensors().items():
            for sample in samples:
                yield _tensor_of(sample, name).to(_TORCH_DTYPES[dtype]).contiguous()


def _check_rows(sample: CapturedSample, store: StoreFormat) -> None:
    T = len(sample.token_ids)
    wanted = {
        name: (_TORCH_DTYPES[dtype], tensor_shape(name, T, values))
        for name, (dtype, values) in store.tensors().items()
        if name not in (TOKEN_IDS, LOSS_MASK)
    }
    found = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in sample.states.items()}
    if found != wanted:
        raise BadProduct(
            f"sample {sample.sample_id}: the states of {T} tokens must be {wanted}, found {found}. "
            "Rows were lost or doubled in the capture: this is a bug, report it."
        )


def _placed(samples: Sequence[CapturedSample]) -> list[StoredSample]:
    placed, offset = [], 0
    for sample in samples:
        length = len(sample.token_ids)
        digest = token_hash(sample.token_ids)
        placed.append(
            StoredSample(sample.sample_id, sample.split, sample.source, offset, length, digest, sample.teacher_agrees)
        )
        offset += length
    return placed


def _tensor_of(sample: CapturedSample, name: str) -> torch.Tensor:
    T = len(sample.token_ids)
    if name == TOKEN_IDS:
        return torch.tensor(sample.token_ids)
    if name == LOSS_MASK:
        return torch.arange(T) >= sample.prompt_tokens
    return sample.states[name]


def _header(store: StoreFormat, samples: list[StoredSample], tokens: int) -> bytes:
    """A safetensors header: length as u64, then JSON padded with spaces to 8 bytes (the format's own rule)."""
    entries: dict[str, object] = {"__metadata__": {METADATA_KEY: describe(store, samples)}}
    start = 0
    for name, (dtype, values) in store.tensors().items():
        end = start + tokens * values * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": tensor_shape(name, tokens, values), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _write_fsynced(path: Path, header: bytes, payload: Iterable[torch.Tensor]) -> str:
    """Write and hash in one pass. The library's own ``save_file`` would need each tensor in one piece.

    Returns:
        Hex sha256 of the file.
    """
    digest = hashlib.sha256(header)
    with path.open("wb") as out:
        out.write(header)
        for tensor in payload:
            data = memoryview(tensor.view(torch.uint8).numpy()).cast("B")
            digest.update(data)
            out.write(data)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()
