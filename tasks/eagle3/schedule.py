"""The optimizer steps of a training and their place among those of all windows, known before the others' states."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.eagle3.packing import Document, Step, document_of, plan_steps
from tasks.eagle3.spec import WindowedTraining
from tasks.hidden_states.plan import usable_samples
from tasks.hidden_states.reader import SampleEntry
from tasks.hidden_states.windows import Window, in_window
from tasks.recipe import Training
from tasks.system.responses import Response


@dataclass(frozen=True)
class Schedule:
    """What one training, or one window of it, does."""

    steps: Sequence[Step]
    """Made here."""
    before: int = 0
    """Made in earlier windows."""
    after: int = 0
    """To be made in later windows."""

    @property
    def end(self) -> int:
        """The last step that is made here, counted over all windows."""
        return self.before + len(self.steps)

    @property
    def total(self) -> int:
        """Steps of all windows: what the learning rate counts in."""
        return self.end + self.after


@dataclass(frozen=True)
class Outlook:
    """What the answers tell of all windows."""

    steps_after: int
    """Steps of the windows that follow."""
    answer_counts_V: Tensor
    """How often each token occurs in the training answers, as ``packing.Survey`` counts them."""


def look_ahead(windowed: WindowedTraining, training: Training, vocab_tokens: int) -> Outlook:
    """Plan the later windows from the answers, by the code that will plan them from their states.

    A sample whose states turn out to be wrong is not in its window's store: the schedule then ends some steps
    earlier than it was announced, and the learning rate still reaches its end.

    Raises:
        BadInput: A line of the answers is not a response.
    """
    usable, _ = usable_samples(windowed.responses_path, windowed.longest_tokens, vocab_tokens)
    counts_V = torch.zeros(vocab_tokens, dtype=torch.long)
    window, steps_after = windowed.window, 0
    for index in range(window.count):
        samples = in_window(usable, Window(index, window.count))
        documents = []
        for sample in samples:
            if sample.split == "training":
                document, sample_counts_V = _planned(sample, training, vocab_tokens)
                counts_V += sample_counts_V
                documents.append(document)
        if index > window.index:
            steps_after += len(planned_steps([d for d in documents if d.counted_K[0]], training))
    return Outlook(steps_after, counts_V)


def planned_steps(documents: Sequence[Document], training: Training) -> list[Step]:
    """All optimizer steps over these samples."""
    return plan_steps(documents, training.pack_tokens, training.packs_per_step, training.epochs, training.seed)


def _planned(sample: Response, training: Training, vocab_tokens: int) -> tuple[Document, Tensor]:
    prompt = len(sample.prompt_token_ids)
    mask_T = torch.arange(sample.length_tokens) >= prompt
    token_ids_T = torch.tensor([*sample.prompt_token_ids, *sample.response_token_ids])
    entry = SampleEntry(sample.sample_id, sample.split, sample.source, sample.length_tokens, shard="", offset_tokens=0)
    document = document_of(entry, mask_T, training.pack_tokens, training.unroll_steps)
    answer_T = token_ids_T[: document.length_tokens][mask_T[: document.length_tokens]]
    return document, torch.bincount(answer_T, minlength=vocab_tokens)
