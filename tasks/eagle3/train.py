"""``python -m tasks.eagle3.train spec.json``: train a drafter on captured states and export it.

read target head, base drafter, hidden-state store
  -> survey the samples, make the vocabulary map (from scratch) or keep the base's (finetuning)
  -> export the untouched base        out/base/
  -> train, from the last checkpoint  out/checkpoints/
  -> export the best                  out/best/, out/curve.csv

The checkpoints stay: whoever lists the products removes them afterwards, so that a kill in between costs nothing.
"""

from dataclasses import asdict

from torch import Tensor

from tasks.eagle3.base import Base, read_base, with_vocabulary
from tasks.eagle3.checkpoints import Checkpoints
from tasks.eagle3.curve import CURVE_NAME, write_curve
from tasks.eagle3.device import checked_device, named_device_faults
from tasks.eagle3.export import EXPORT_FILES, export_drafter
from tasks.eagle3.packing import Survey, pack_documents, plan_steps, survey_samples
from tasks.eagle3.spec import CHECKPOINTS_NAME, TrainingResult, TrainingSpec
from tasks.eagle3.target_head import TargetHead, read_target_head
from tasks.eagle3.trainer import Trainer
from tasks.eagle3.validation import Validation
from tasks.eagle3.vocab_map import most_frequent
from tasks.eagle3.watch import watched
from tasks.errors import BadInput
from tasks.hidden_states.reader import SampleEntry, StateReader
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
    """
    checked_device(spec.training.device)
    reporter.progress("reading target and base", 0, 0, "checkpoints")
    target = read_target_head(spec.target_folder)
    base = read_base(spec.base_folder, target, spec.drafter.layer_ids)
    reader = StateReader(spec.states_folder)
    _check_states(reader, base, spec)
    survey = _survey(reader, "training", spec, target, reporter)
    held_out = _survey(reader, "validation", spec, target, reporter)
    if base.vocab_map is None:
        base = with_vocabulary(base, most_frequent(survey.answer_counts_V, spec.drafter.draft_vocab_tokens), target)
    assert base.vocab_map is not None
    _export(spec, "base", base, base.weights)
    with named_device_faults(spec.training.pack_tokens):
        trainer = _trainer(spec, base, target, reader, survey, held_out, reporter)
        try:
            progress = trainer.run()
        finally:
            write_curve(spec.out_folder, trainer.progress.curve, spec.training.unroll_steps)
    _export(spec, "best", base, progress.best_weights or base.weights)
    return TrainingResult(
        steps=progress.step,
        positions=progress.positions,
        best_step=progress.best_step,
        base_acceptance_length=progress.base_acceptance_length,
        best_acceptance_length=progress.best_acceptance_length,
        draft_vocab_coverage=base.vocab_map.coverage(survey.answer_counts_V),
        files=[*(f"{folder}/{name}" for folder in ("base", "best") for name in EXPORT_FILES), CURVE_NAME],
    )


def _export(spec: TrainingSpec, name: str, base: Base, weights: dict[str, Tensor]) -> None:
    assert base.vocab_map is not None
    folder = spec.out_folder / name
    export_drafter(folder, base.config, base.raw_config, weights, base.vocab_map, spec.reserve_bytes)


def _check_states(reader: StateReader, base: Base, spec: TrainingSpec) -> None:
    if not reader.final_is_normed:
        raise BadInput(
            f"{spec.states_folder} holds final states from before the target's final norm; the teacher needs them "
            "after it. Run the extraction again."
        )
    if tuple(reader.layer_ids) != base.config.layer_ids:
        raise BadInput(
            f"the drafter in {spec.base_folder} reads the layers {list(base.config.layer_ids)}, but "
            f"{spec.states_folder} holds the layers {reader.layer_ids}. Extract again with the drafter's layers."
        )
    if reader.hidden_size != base.config.hidden_size:
        raise BadInput(
            f"{spec.states_folder} holds states of size {reader.hidden_size}, but the drafter in {spec.base_folder} "
            f"has {base.config.hidden_size}. Extract again with this target."
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
    return survey


def _trainer(
    spec: TrainingSpec,
    base: Base,
    target: TargetHead,
    reader: StateReader,
    survey: Survey,
    held_out: Survey,
    reporter: Reporter,
) -> Trainer:
    training = spec.training
    steps = plan_steps(survey.documents, training.pack_tokens, training.packs_per_step, training.epochs, training.seed)
    packs = pack_documents(held_out.documents, training.pack_tokens)
    validation = Validation(reader, packs, target.lm_head_VD, training.unroll_steps)
    return Trainer(base, target, training, reader, steps, validation, _checkpoints(spec, base), reporter)


def _checkpoints(spec: TrainingSpec, base: Base) -> Checkpoints:
    identity = {
        "training": identity_of(spec.training),
        "drafter": asdict(base.config),
        "base": str(spec.base_folder),
        "states": str(spec.states_folder),
    }
    return Checkpoints(spec.out_folder / CHECKPOINTS_NAME, identity, spec.reserve_bytes)


if __name__ == "__main__":
    child_main(TrainingSpec, train)
