"""Which samples meet in which optimizer step, in what order: a pure function of seed, epoch and lengths.

Nothing is padded: a pack is as long as its documents, at most ``pack_tokens``.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.eagle3.unroll import Pack, plan_unroll
from tasks.errors import BadInput
from tasks.hidden_states.reader import SampleEntry, StateReader
from tasks.hidden_states.teacher import cat_teachers

# Above this share of useless samples something is wrong with the masks, not with single samples.
LARGEST_SKIPPED_SHARE = 0.5


@dataclass(frozen=True)
class Document:
    """A sample as it is trained on: its first ``length_tokens`` tokens."""

    entry: SampleEntry
    length_tokens: int
    counted_K: tuple[int, ...]
    """Drafts that count, for every unroll step."""


Step = list[list[Document]]
"""One optimizer step: its packs, each a list of documents."""


@dataclass(frozen=True)
class Survey:
    """What a first pass over ids and masks found; states are not read."""

    documents: list[Document]
    answer_counts_V: Tensor
    """How often each token occurs in the answers."""
    cut_samples: int
    """Samples longer than a pack: their ends are not trained on."""
    skipped_samples: int
    """Samples without anything to learn from."""


def survey_samples(
    reader: StateReader,
    entries: Sequence[SampleEntry],
    pack_tokens: int,
    steps: int,
    vocab_size: int,
    progress: Callable[[int, int], None],
) -> Survey:
    """Read ids and masks of samples, cut what is too long and leave out what teaches nothing.

    Args:
        reader: The store.
        entries: Samples of one split.
        pack_tokens: Length that samples are cut to.
        steps: Unroll steps K.
        vocab_size: Target ids V.
        progress: Called with the samples done and their number.

    Raises:
        BadInput: No sample, or less than half of them, has an answer token to learn from.
    """
    documents, cut, counts_V = [], 0, torch.zeros(vocab_size, dtype=torch.long)
    for done, entry in enumerate(entries):
        progress(done, len(entries))
        sample = reader.read_tokens(entry)
        document = document_of(entry, sample.loss_mask_T, pack_tokens, steps)
        length = document.length_tokens
        counts_V += torch.bincount(sample.token_ids_T[:length][sample.loss_mask_T[:length]], minlength=vocab_size)
        cut += length < entry.length_tokens
        if document.counted_K[0]:
            documents.append(document)
    skipped = len(entries) - len(documents)
    if not documents or skipped > LARGEST_SKIPPED_SHARE * len(entries):
        raise BadInput(
            f"{skipped} of {len(entries)} samples have no answer token within their first {pack_tokens} tokens. "
            "Raise training.pack_tokens, or check the loss masks of the hidden-state store."
        )
    return Survey(documents, counts_V, cut, skipped)


def document_of(entry: SampleEntry, loss_mask_T: Tensor, pack_tokens: int, steps: int) -> Document:
    """A sample cut to a pack, with the drafts that count in it."""
    length = min(entry.length_tokens, pack_tokens)
    plan = plan_unroll(loss_mask_T[:length], torch.zeros(length, dtype=torch.long), steps)
    return Document(entry, length, tuple(plan.counted))


def pack_documents(documents: Sequence[Document], pack_tokens: int) -> list[list[Document]]:
    """Fill packs in the given order; a document that does not fit opens the next pack."""
    packs: list[list[Document]] = []
    room = 0
    for document in documents:
        if document.length_tokens > room:
            packs.append([])
            room = pack_tokens
        packs[-1].append(document)
        room -= document.length_tokens
    return packs


def plan_steps(
    documents: Sequence[Document], pack_tokens: int, packs_per_step: int, epochs: int, seed: int
) -> list[Step]:
    """All optimizer steps of a training.

    The order depends on (seed, epoch) and the samples alone, so the number of a step is the data cursor.
    """
    steps = []
    for epoch in range(epochs):
        shuffled = sorted(documents, key=lambda document: document.entry.sample_id)
        random.Random(f"{seed}/{epoch}").shuffle(shuffled)
        packs = pack_documents(shuffled, pack_tokens)
        steps += [packs[i : i + packs_per_step] for i in range(0, len(packs), packs_per_step)]
    return steps


def counted_in(step: Sequence[Sequence[Document]]) -> list[int]:
    """Counted drafts of every unroll step, over all packs of an optimizer step."""
    return [sum(counts) for counts in zip(*(d.counted_K for pack in step for d in pack), strict=True)]


def read_pack(reader: StateReader, documents: Sequence[Document]) -> Pack:
    """Read documents from the store and lay them end to end."""
    samples = [reader.read(document.entry) for document in documents]
    lengths = [document.length_tokens for document in documents]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return Pack(
        sample_ids=[document.entry.sample_id for document in documents],
        tokens_T=torch.cat([s.token_ids_T[:n] for s, n in zip(samples, lengths, strict=True)]),
        answer_T=torch.cat([s.loss_mask_T[:n] for s, n in zip(samples, lengths, strict=True)]),
        start_T=torch.repeat_interleave(torch.tensor(starts), torch.tensor(lengths)),
        aux_TAD=torch.cat([s.aux_TAD[:n] for s, n in zip(samples, lengths, strict=True)]),
        teacher=cat_teachers([s.teacher[:n] for s, n in zip(samples, lengths, strict=True)]),
    )
