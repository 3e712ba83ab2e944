"""``python -m tasks.eagle3.train spec.json``: train a drafter on captured states and export it.

read target head, base drafter, hidden-state store
  -> survey the samples, make the vocabulary map (from scratch) or keep the base's (finetuning)
  -> export the untouched base        out/base/
  -> train, from the last checkpoint  out/checkpoints/
  -> export the best                  out/best/, out/curve.csv

With windows, the training goes on from the hand-over of the window before, and all windows but the last export
nothing: they leave a hand-over in out/hand-over/.

The checkpoints stay: whoever lists the products removes them afterwards, so that a kill in between costs nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from tasks.eagle3.base import Base, read_base, with_vocabulary
from tasks.eagle3.checkpoints import Checkpoints
from tasks.eagle3.curve import CURVE_NAME, write_curve
from tasks.eagle3.device import checked_device, named_device_faults
from tasks.eagle3.export import EXPORT_FILES, export_drafter
from tasks.eagle3.hand_over import read_hand_over, write_hand_over
from tasks.eagle3.packing import Survey, pack_documents, survey_samples
from tasks.eagle3.schedule import Schedule, look_ahead, planned_steps
from tasks.eagle3.spec import CHECKPOINTS_NAME, TrainingResult, TrainingSpec
from tasks.eagle3.target_head import TargetHead, read_target_head
from tasks.eagle3.trainer import Progress, Trainer
from tasks.eagle3.validation import Validation
from tasks.eagle3.vocab_map import most_frequent
from tasks.eagle3.watch import watched
from tasks.errors import BadInput
from tasks.hidden_states.layout import vocab_map_hash
from tasks.hidden_states.reader import SampleEntry, StateReader
from tasks.hidden_states.target import read_target_shape
from tasks.recipe import identity_of
from tasks.system.child import Reporter, child_main


def train(spec: TrainingSpec, reporter: Reporter) -> TrainingResult:
    """Train and export.

    Raises:
        RecipeError: The training device is not there.
        BadInput: Target, base and states do not fit each other, or the samples teach nothing.
        BadProduct: The loss or a weight became NaN or Inf.
        NotEnoughDisk: A checkpoint or an export found no room; the next call goes on from the last checkpoint.
        Stopped: A stop was asked for; the next call goes on from the checkpoint that was saved.
        DeadlineReached: It is time to wind down; likewise.
    """
    checked_device(spec.training.device)
    reporter.progress("reading target and base", 0, 0, "checkpoints")
    target = read_target_head(spec.target_folder)
    base = read_base(spec.base_folder, target, spec.drafter.layer_ids)
    reader = StateReader(spec.states_folder)
    _check_states(reader, base, spec)
    survey = _survey(reader, "training", spec, target, reporter)
    held_out = _survey(reader, "validation", spec, target, reporter)
    schedule, answer_counts_V = _schedule(spec, survey)
    if base.vocab_map is None:
        stored = reader.draft_vocab()
        made = most_frequent(answer_counts_V, spec.drafter.draft_vocab_tokens)
        base = with_vocabulary(base, made if stored is None else stored.to_map(), target)
    assert base.vocab_map is not None
    if _exports(spec):
        _export(spec, "base", base, base.weights)
    with named_device_faults(spec.training.pack_tokens):
        trainer = _trainer(spec, base, target, reader, schedule, held_out, reporter)
        try:
            progress = trainer.run(_handed_over(spec, base))
        finally:
            write_curve(spec.out_folder, trainer.progress.curve, spec.training.unroll_steps)
    return TrainingResult(
        steps=progress.step,
        positions=progress.positions,
        best_step=progress.best_step,
        base_acceptance_length=progress.base_acceptance_length,
        best_acceptance_length=progress.best_acceptance_length,
        draft_vocab_coverage=base.vocab_map.coverage(answer_counts_V),
        files=[*_products(spec, base, trainer, progress), CURVE_NAME],
    )


def _exports(spec: TrainingSpec) -> bool:
    """Whether the training ends here."""
    return spec.windowed is None or spec.windowed.window.is_last


def _products(spec: TrainingSpec, base: Base, trainer: Trainer, progress: Progress) -> list[str]:
    """Write what the training leaves; the files, relative to its folder."""
    if not _exports(spec):
        return write_hand_over(spec.out_folder, trainer.state(), _identity(spec, base), spec.reserve_bytes)
    _export(spec, "best", base, progress.best_weights or base.weights)
    return [f"{folder}/{name}" for folder in ("base", "best") for name in EXPORT_FILES]


def _schedule(spec: TrainingSpec, survey: Survey) -> tuple[Schedule, Tensor]:
    """The steps, and how often each token occurs in the answers of all windows."""
    steps = planned_steps(survey.documents, spec.training)
    if spec.windowed is None:
        return Schedule(steps), survey.answer_counts_V
    outlook = look_ahead(spec.windowed, spec.training, read_target_shape(spec.target_folder).vocab_tokens)
    schedule = Schedule(steps, spec.windowed.steps_before, outlook.steps_after)
    window = spec.windowed.window
    print(
        f"window {window.index + 1} of {window.count}: steps {schedule.before + 1} to {schedule.end} "
        f"of {schedule.total}",
        flush=True,
    )
    return schedule, outlook.answer_counts_V


def _handed_over(spec: TrainingSpec, base: Base) -> dict[str, Any] | None:
    previous = spec.windowed.previous_folder if spec.windowed is not None else None
    return read_hand_over(previous, _identity(spec, base)) if previous is not None else None


def _export(spec: TrainingSpec, name: str, base: Base, weights: dict[str, Tensor]) -> None:
    assert base.vocab_map is not None
    folder = spec.out_folder / name
    export_drafter(folder, base.config, base.raw_config, weights, base.vocab_map, spec.reserve_bytes)


def _check_states(reader: StateReader, base: Base, spec: TrainingSpec) -> None:
    store = reader.store
    if not store.final_is_normed:
        raise BadInput(
            f"{spec.states_folder} holds final states from before the target's final norm; the teacher needs them "
            "after it. Run the extraction again."
        )
    if tuple(store.layer_ids) != base.config.layer_ids:
        raise BadInput(
            f"the drafter in {spec.base_folder} reads the layers {list(base.config.layer_ids)}, but "
            f"{spec.states_folder} holds the layers {store.layer_ids}. Extract again with the drafter's layers."
        )
    if store.hidden_size != base.config.hidden_size:
        raise BadInput(
            f"{spec.states_folder} holds states of size {store.hidden_size}, but the drafter in {spec.base_folder} "
            f"has {base.config.hidden_size}. Extract again with this target."
        )
    _check_draft_vocab(reader, base, spec)


def _check_draft_vocab(reader: StateReader, base: Base, spec: TrainingSpec) -> None:
    """Stored logits are about one draft vocabulary, and no other drafter can learn from them."""
    stored = reader.draft_vocab()
    if stored is None:
        return
    if base.vocab_map is not None:
        own_tokens, own = len(base.vocab_map.target_ids_W), vocab_map_hash(base.vocab_map.target_ids_W.tolist())
    else:
        own_tokens, own = min(spec.drafter.draft_vocab_tokens, stored.vocab_tokens), stored.sha256
    if (own_tokens, own) != (len(stored.target_ids), stored.sha256):
        raise BadInput(
            f"{spec.states_folder} holds logits over a draft vocabulary of {len(stored.target_ids)} tokens with the "
            f"hash {stored.sha256}, but the drafter in {spec.base_folder} has one of {own_tokens} tokens with the "
            f"hash {own}. Extract again with this drafter, or train the one that the states were captured for."
        )


def _survey(reader: StateReader, split: str, spec: TrainingSpec, target: TargetHead, reporter: Reporter) -> Survey:
    entries: list[SampleEntry] = [entry for entry in reader.samples if entry.split == split]
    if not entries:
        raise BadInput(f"{spec.states_folder} has no {split} samples. Raise prompts.{split}_samples and run again.")
    training = spec.training
    survey = survey_samples(
        reader,
        entries,
        training.pack_tokens,
        training.unroll_steps,
        vocab_size=len(target.embed_VD),
        progress=watched(reporter, f"reading {split} samples", "samples"),
    )
    print(
        f"{split}: {len(survey.documents)} samples, {survey.cut_samples} cut to {training.pack_tokens} tokens, "
        f"{survey.skipped_samples} without an answer token left out",
        flush=True,
    )
    if split == "validation" and spec.windowed is not None:
        # Each window's store has them in other shards; they are judged in one order all the same.
        survey = replace(survey, documents=sorted(survey.documents, key=lambda document: document.entry.sample_id))
    return survey


def _trainer(
    spec: TrainingSpec,
    base: Base,
    target: TargetHead,
    reader: StateReader,
    schedule: Schedule,
    held_out: Survey,
    reporter: Reporter,
) -> Trainer:
    training = spec.training
    packs = pack_documents(held_out.documents, training.pack_tokens)
    validation = Validation(reader, packs, target.lm_head_VD, training.unroll_steps)
    identity = {**_identity(spec, base), "base": str(spec.base_folder), "states": str(spec.states_folder)}
    checkpoints = Checkpoints(spec.out_folder / CHECKPOINTS_NAME, identity, spec.reserve_bytes)
    return Trainer(base, target, training, reader, schedule, validation, checkpoints, reporter)


def _identity(spec: TrainingSpec, base: Base) -> Mapping[str, Any]:
    """What all windows of a training have in common."""
    return {"training": identity_of(spec.training), "drafter": asdict(base.config)}


if __name__ == "__main__":
    child_main(TrainingSpec, train)
