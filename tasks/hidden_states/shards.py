"""Writing captured samples into bounded safetensors shards, many samples each.

Shape legend: T tokens of a sample, N tokens of a shard, A auxiliary layers, D hidden size.
"""

import errno
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.errors import BadProduct, NotEnoughDisk
from tasks.hidden_states.index import (
    METADATA_KEY,
    ShardRecord,
    StoredSample,
    append_record,
    describe,
    recover,
)
from tasks.hidden_states.layout import (
    AUX,
    DTYPE_BYTES,
    FINAL,
    LOSS_MASK,
    TOKEN_IDS,
    StoreFormat,
    bytes_per_token,
    tensor_widths,
    token_hash,
)
from tasks.system.files import PARTIAL_SUFFIX, publish

_TORCH_DTYPES = {"I32": torch.int32, "U8": torch.uint8, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class CapturedSample:
    """One sample's rows on their way into a shard, all on the CPU."""

    sample_id: str
    split: str
    source: str
    token_ids: list[int]
    prompt_tokens: int
    """The first tokens that are not part of the answer."""
    aux_TAD: torch.Tensor
    """bfloat16 [T, A*D]."""
    final_TD: torch.Tensor
    """bfloat16 [T, D], after the target's final norm."""


class ShardWriter:
    """Buffers samples and writes a shard whenever ``shard_bytes`` are full.

    A shard is written aside, fsynced, renamed, and only then listed in the index, so that a crash
    at any moment loses at most what was buffered.
    """

    def __init__(self, folder: Path, store: StoreFormat, shard_bytes: int, reserve_bytes: int) -> None:
        """Take over a folder: valid shards in it are kept, everything else that looks like one is removed.

        Args:
            folder: Where shards and index go; made when missing.
            store: What the shards hold.
            shard_bytes: Size at which a shard is closed; one sample may be larger.
            reserve_bytes: Free space that every shard must leave on the volume.

        Raises:
            BadProduct: The folder holds shards of another format, or its index is damaged.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.records = recover(folder)
        for record in self.records:
            if record.format != store:
                raise BadProduct(
                    f"{folder / record.file} holds {record.format}, but {store} is to be written. "
                    "Name another folder, or delete this one."
                )
        self._folder, self._store = folder, store
        self._shard_bytes, self._reserve_bytes = shard_bytes, reserve_bytes
        self._token_bytes = bytes_per_token(store.layout, store.hidden_size, len(store.layer_ids))
        self._buffer: list[CapturedSample] = []
        self._buffered_tokens = 0
        self._next_number = 1 + max((_number(record.file) for record in self.records), default=-1)

    @property
    def stored_ids(self) -> set[str]:
        """Samples that are on disk; buffered ones are not."""
        return {sample.id for record in self.records for sample in record.samples}

    def add(self, sample: CapturedSample) -> None:
        """Buffer a sample; closes a shard when it is full.

        Raises:
            BadProduct: The rows do not fit the token ids or the format.
            NotEnoughDisk: The shard would not leave the reserve.
        """
        _check_rows(sample, self._store)
        tokens = len(sample.token_ids)
        if self._buffer and (self._buffered_tokens + tokens) * self._token_bytes > self._shard_bytes:
            self.flush()
        self._buffer.append(sample)
        self._buffered_tokens += tokens
        if self._buffered_tokens * self._token_bytes >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered as one shard.

        Raises:
            NotEnoughDisk: The shard would not leave the reserve, or the volume filled up meanwhile.
                What was written before stays valid; what was buffered is captured again.
        """
        if not self._buffer:
            return
        stored = _placed(self._buffer)
        header = _header(self._store, stored, self._buffered_tokens)
        size_bytes = len(header) + self._buffered_tokens * self._token_bytes
        self._guard(size_bytes)
        path = self._folder / f"shard-{self._next_number:06d}.safetensors"
        sha256 = self._write(path, header, size_bytes)
        status = path.stat()
        record = ShardRecord(path.name, status.st_size, status.st_mtime_ns, sha256, self._store, stored)
        append_record(self._folder, record)
        self.records.append(record)
        self._buffer, self._buffered_tokens, self._next_number = [], 0, self._next_number + 1

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

    def _write(self, path: Path, header: bytes, size_bytes: int) -> str:
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        try:
            sha256 = _write_fsynced(partial, header, self._payload())
        except OSError as error:
            partial.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise self._not_enough(size_bytes, shutil.disk_usage(self._folder).free) from error
        publish(partial, path)
        return sha256

    def _payload(self) -> Iterable[torch.Tensor]:
        """The buffered tensors in file order, one by one: no second copy of a shard in memory."""
        for name, (dtype, _) in tensor_widths(
            self._store.layout, self._store.hidden_size, len(self._store.layer_ids)
        ).items():
            for sample in self._buffer:
                yield _tensor_of(sample, name).to(_TORCH_DTYPES[dtype]).contiguous()


def _number(file: str) -> int:
    return int(file.removeprefix("shard-").removesuffix(".safetensors"))


def _check_rows(sample: CapturedSample, store: StoreFormat) -> None:
    T, D = len(sample.token_ids), store.hidden_size
    wanted = ((T, len(store.layer_ids) * D), (T, D))
    found = (tuple(sample.aux_TAD.shape), tuple(sample.final_TD.shape))
    if found != wanted:
        raise BadProduct(
            f"sample {sample.sample_id}: aux and final states of {T} tokens must have the shapes {wanted}, "
            f"found {found}. Rows were lost or doubled in the capture: this is a bug, report it."
        )


def _placed(samples: list[CapturedSample]) -> list[StoredSample]:
    placed, offset = [], 0
    for sample in samples:
        length = len(sample.token_ids)
        digest = token_hash(sample.token_ids)
        placed.append(StoredSample(sample.sample_id, sample.split, sample.source, offset, length, digest))
        offset += length
    return placed


def _tensor_of(sample: CapturedSample, name: str) -> torch.Tensor:
    T = len(sample.token_ids)
    if name == TOKEN_IDS:
        return torch.tensor(sample.token_ids)
    if name == LOSS_MASK:
        return torch.arange(T) >= sample.prompt_tokens
    return {AUX: sample.aux_TAD, FINAL: sample.final_TD}[name]


def _header(store: StoreFormat, samples: list[StoredSample], tokens: int) -> bytes:
    """A safetensors header: length as u64, then JSON padded with spaces to 8 bytes (the format's own rule)."""
    entries: dict[str, object] = {"__metadata__": {METADATA_KEY: describe(store, samples)}}
    start = 0
    for name, (dtype, values) in tensor_widths(store.layout, store.hidden_size, len(store.layer_ids)).items():
        end = start + tokens * values * DTYPE_BYTES[dtype]
        shape = [tokens] if name in (TOKEN_IDS, LOSS_MASK) else [tokens, values]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
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
