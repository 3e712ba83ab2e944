"""Reading captured samples back, one at a time, from memory-mapped slices of their shards; every layout alike.

Shape legend: T tokens of a sample, A auxiliary layers, D hidden size.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tasks.errors import BadProduct
from tasks.hidden_states.draft_vocab import DraftVocab, read_draft_vocab
from tasks.hidden_states.encoding import decode_aux, decode_teacher
from tasks.hidden_states.index import (
    CORRUPT_SUFFIX,
    INDEX_NAME,
    METADATA_KEY,
    ShardRecord,
    StoredSample,
    describe,
    read_index,
)
from tasks.hidden_states.layout import LOSS_MASK, TOKEN_IDS, StoreFormat, token_hash
from tasks.hidden_states.teacher import Teacher
from tasks.system.files import sha256_of

# The reference run has thousands of shards, more than a process may have files open.
_OPEN_SHARDS = 16
_REMEDY = "Run again: only that shard's samples are captured anew."


@dataclass(frozen=True)
class SampleEntry:
    """One sample of the store, without its tensors."""

    sample_id: str
    split: str
    """``training`` or ``validation``."""
    source: str
    length_tokens: int
    shard: str
    """File name of the shard."""
    offset_tokens: int
    """First row of the sample in its shard."""


@dataclass(frozen=True)
class TokenSample:
    """One sample's ids."""

    sample_id: str
    token_ids_T: torch.Tensor
    """int64 [T]: prompt and answer."""
    loss_mask_T: torch.Tensor
    """bool [T]: True on the answer's tokens."""


@dataclass(frozen=True)
class StateSample(TokenSample):
    """One sample's ids and states. Some tensors are views of the mapped file: read them, never write to them."""

    aux_TAD: torch.Tensor
    """bfloat16 [T, A*D]: auxiliary layers concatenated in the order of the layer ids."""
    teacher: Teacher
    """What the target says after each token."""


class StateReader:
    """The samples of a folder that ``ShardWriter`` filled."""

    samples: list[SampleEntry]
    store: StoreFormat

    def __init__(self, folder: Path) -> None:
        """Read the index; no shard is opened yet.

        Args:
            folder: Folder with ``index.jsonl`` and its shards.

        Raises:
            BadProduct: There is no index, a shard is missing or differs in size or time, or the
                shards disagree on layout, layer ids or hidden size.
        """
        self._folder = folder
        records = read_index(folder)
        _check_records(folder, records)
        self.store = records[0].format
        self._records = {record.file: record for record in records}
        self._stored = {(record.file, s.offset): s for record in records for s in record.samples}
        self.samples = [_entry(record.file, s) for record in records for s in record.samples]
        self._verified: set[str] = set()
        self._open: OrderedDict[str, Any] = OrderedDict()

    def draft_vocab(self) -> DraftVocab | None:
        """The draft vocabulary that the teacher's logits are about; None where final states are stored.

        Raises:
            BadProduct: The file with it is missing or another one.
        """
        sha256 = self.store.vocab_map_sha256
        return read_draft_vocab(self._folder, sha256) if sha256 else None

    def read(self, entry: SampleEntry) -> StateSample:
        """One sample's ids and states; otherwise as ``read_tokens``."""
        tokens = self.read_tokens(entry)
        shard, rows = self._shard(entry.shard), _rows(entry)
        stored = {
            name: shard.get_slice(name)[rows] for name in self.store.tensors() if name not in (TOKEN_IDS, LOSS_MASK)
        }
        return StateSample(
            tokens.sample_id, tokens.token_ids_T, tokens.loss_mask_T, decode_aux(stored), decode_teacher(stored)
        )

    def read_tokens(self, entry: SampleEntry) -> TokenSample:
        """One sample's ids, without its states.

        The first read of a shard hashes the whole of it. A shard that is not what was written is renamed to
        ``<name>.corrupt``, which makes it missing, so that the next extraction makes it again and nothing else.

        Raises:
            BadProduct: The shard's checksum, or the sample's token ids, are not those that were written.
        """
        shard, rows = self._shard(entry.shard), _rows(entry)
        token_ids_T = shard.get_slice(TOKEN_IDS)[rows]
        found = token_hash(token_ids_T.tolist())
        stored = self._stored[entry.shard, entry.offset_tokens]
        if (stored.id, stored.token_hash) != (entry.sample_id, found):
            path = self._folder / entry.shard
            raise BadProduct(
                f"{path}, sample {entry.sample_id}: token ids with the hash {stored.token_hash} ({stored.id}) "
                f"were written, {found} were read. {_set_aside(path)}"
            )
        return TokenSample(entry.sample_id, token_ids_T.long(), shard.get_slice(LOSS_MASK)[rows].bool())

    def _shard(self, file: str) -> Any:
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        if file not in self._verified:
            _verify(self._folder / file, self._records[file])
            self._verified.add(file)
        if len(self._open) >= _OPEN_SHARDS:
            self._open.popitem(last=False)
        self._open[file] = safe_open(self._folder / file, framework="pt")
        return self._open[file]


def _rows(entry: SampleEntry) -> slice:
    return slice(entry.offset_tokens, entry.offset_tokens + entry.length_tokens)


def _entry(file: str, sample: StoredSample) -> SampleEntry:
    return SampleEntry(sample.id, sample.split, sample.source, sample.length, file, sample.offset)


def _check_records(folder: Path, records: list[ShardRecord]) -> None:
    if not records:
        raise BadProduct(f"{folder / INDEX_NAME} lists no shard: there are no hidden states. Run the extraction first.")
    for record in records:
        if (fault := record.fault(folder)) is not None:
            raise BadProduct(f"{folder / record.file} {fault}. {_REMEDY}")
        if record.format != records[0].format:
            raise BadProduct(
                f"{folder}: all shards must hold the same, but {records[0].file} holds {records[0].format} "
                f"and {record.file} holds {record.format}. Delete the folder and run the extraction again."
            )


def _verify(path: Path, record: ShardRecord) -> None:
    found = sha256_of(path)
    if found != record.sha256:
        raise BadProduct(f"{path}: sha256 {record.sha256} was written, {found} is there. {_set_aside(path)}")
    try:
        with safe_open(path, framework="pt") as shard:
            written = (shard.metadata() or {}).get(METADATA_KEY, "{}")
    except SafetensorError as error:
        raise BadProduct(f"{path} is not a safetensors file ({error}). {_set_aside(path)}") from error
    if json.loads(written) != json.loads(describe(record.format, record.samples)):
        raise BadProduct(f"{path} describes itself otherwise than {INDEX_NAME} does. {_set_aside(path)}")


def _set_aside(path: Path) -> str:
    """Take a bad shard out of the way, so that it counts as missing from now on; what to do, for the message."""
    aside = path.with_name(path.name + CORRUPT_SUFFIX)
    try:
        path.replace(aside)
    except OSError as error:
        return f"Delete that file ({error.strerror}: it could not be renamed) and run again."
    return f"It was renamed to {aside.name}. {_REMEDY}"
