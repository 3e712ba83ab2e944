"""The trainer as its child process runs it: resume, stop, refusals, and what it leaves behind."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_states import LAYER_IDS, VOCAB, write_states

from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec, TrainingSpec
from tasks.eagle3.train import train
from tasks.errors import BadInput, BadProduct, Stopped
from tasks.recipe import Drafter, Training
from tasks.system.child import Reporter

STEPS = 10


class StoppingReporter(Reporter):
    """Asks for a stop once a number of steps was reported."""

    def __init__(self, path, after):
        super().__init__(path)
        self._after = after

    def progress(self, phase, done, total, unit, **figures):
        super().progress(phase, done, total, unit, **figures)
        self.stop_requested = phase == "training" and done >= self._after


@pytest.fixture
def spec(tmp_path, target_folder, states_folder):
    drafter = Drafter(layer_ids=LAYER_IDS, draft_vocab_tokens=20)
    initialize(
        InitialDrafterSpec(target_folder=target_folder, out_folder=tmp_path / "initial", drafter=drafter),
        Reporter(tmp_path / "initial.progress"),
    )
    training = Training(
        epochs=5, pack_tokens=40, learning_rate=1e-2, validate_every_steps=3, optimizer="muon", device="cpu"
    )
    return TrainingSpec(
        target_folder=target_folder,
        base_folder=tmp_path / "initial",
        states_folder=states_folder,
        out_folder=tmp_path / "out",
        reserve_bytes=0,
        drafter=drafter,
        training=training,
    )


def run(spec, after=None):
    path = spec.out_folder.with_suffix(".progress")
    return train(spec, Reporter(path) if after is None else StoppingReporter(path, after))


@pytest.fixture(autouse=True)
def reported_every_step(monkeypatch):
    monkeypatch.setattr("tasks.eagle3.trainer.REPORT_EVERY_SECONDS", 0.0)


def curve(spec):
    rows = list(csv.DictReader((spec.out_folder / "curve.csv").open()))
    return [{name: value for name, value in row.items() if name != "positions_per_second"} for row in rows]


def best(spec):
    return load_file(spec.out_folder / "best" / "model.safetensors")


def with_training(spec, **changes):
    return replace(spec, training=replace(spec.training, **changes))


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("autocast", ["bfloat16", "float32"])
def test_ten_steps_equal_five_and_resume_and_five(spec, tmp_path, optimizer, autocast):
    whole = with_training(spec, optimizer=optimizer, autocast=autocast, pull_to_base=1e-3)
    broken = replace(whole, out_folder=tmp_path / "broken")
    result = run(whole)
    assert result.steps == STEPS
    with pytest.raises(Stopped, match="after step 5 of 10"):
        run(broken, after=5)
    assert run(broken) == result
    assert curve(broken) == curve(whole)
    for name, tensor in best(whole).items():
        assert torch.equal(best(broken)[name], tensor), name


def test_the_result_lists_what_was_left_and_no_checkpoint_stays(spec):
    result = run(spec)
    left = {str(p.relative_to(spec.out_folder)) for p in spec.out_folder.rglob("*") if p.is_file()}
    assert left == set(result.files)


def test_the_base_is_exported_untouched(spec):
    run(spec)
    initial, exported = (load_file(f / "model.safetensors") for f in (spec.base_folder, spec.out_folder / "base"))
    assert all(torch.equal(exported[name], tensor) for name, tensor in initial.items())


def test_the_head_from_scratch_is_the_targets_rows(spec):
    run(spec)
    exported = load_file(spec.out_folder / "base" / "model.safetensors")
    embed = load_file(spec.target_folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(exported["lm_head.weight"], embed[exported["d2t"] + torch.arange(20)])


def test_training_lowers_the_loss(spec):
    run(spec)
    losses = [float(row["loss"]) for row in curve(spec) if row["loss"]]
    assert losses[-1] < losses[0]


def test_finetuning_keeps_the_vocabulary_map_byte_for_byte(spec, tmp_path):
    run(spec)
    second = replace(spec, base_folder=spec.out_folder / "best", out_folder=tmp_path / "second")
    run(with_training(second, seed=1))
    for name in ("d2t", "t2d"):
        assert torch.equal(best(second)[name], best(spec)[name])


def test_a_whole_draft_vocabulary_leaves_the_map_out(spec):
    run(replace(spec, drafter=replace(spec.drafter, draft_vocab_tokens=VOCAB)))
    assert not {"d2t", "t2d"} & set(best(spec))


def test_an_export_trains_on_from_where_it_was(spec, tmp_path):
    """Reading an export back gives the drafter that was validated: the same figure at step 0."""
    first = run(spec)
    second = run(replace(spec, base_folder=spec.out_folder / "best", out_folder=tmp_path / "second"))
    assert second.base_acceptance_length == pytest.approx(first.best_acceptance_length, abs=0.15)


def test_the_config_names_the_layers_in_both_numberings(spec):
    run(spec)
    config = json.loads((spec.out_folder / "best" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == LAYER_IDS
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    assert config["draft_vocab_size"] == 20


def test_a_frozen_head_stays(spec):
    run(with_training(spec, train_head=False))
    base = load_file(spec.out_folder / "base" / "model.safetensors")
    assert torch.equal(best(spec)["lm_head.weight"], base["lm_head.weight"])


def test_validation_is_at_the_base_every_few_steps_and_at_the_end(spec):
    run(spec)
    assert [row["step"] for row in curve(spec) if row["acceptance_length"]] == ["0", "3", "6", "9", "10"]


def test_a_nan_names_the_step_and_the_samples_and_leaves_no_best(spec, tmp_path):
    bad = replace(spec, states_folder=write_states(tmp_path / "bad", poisoned="s2"))
    with pytest.raises(BadProduct, match=r"step 1 is NaN or Inf, with the samples .*s2"):
        run(with_training(bad, pack_tokens=200))
    assert not (spec.out_folder / "best").exists()
    assert not list((spec.out_folder / "checkpoints").iterdir())


def test_states_of_other_layers_are_refused(spec, tmp_path):
    other = replace(spec, states_folder=write_states(tmp_path / "other", layer_ids=[1, 2, 5]))
    with pytest.raises(BadInput, match=r"reads the layers \[1, 3, 5\].* holds the layers \[1, 2, 5\]"):
        run(other)


def test_final_states_from_before_the_norm_are_refused(spec, tmp_path):
    other = replace(spec, states_folder=write_states(tmp_path / "other", final_is_normed=False))
    with pytest.raises(BadInput, match="before the target's final norm"):
        run(other)


def edited_base(spec, tmp_path, change):
    """A finetuning base with a fault in its tensors."""
    run(spec)
    folder = tmp_path / "edited"
    folder.mkdir()
    (folder / "config.json").write_text((spec.out_folder / "best" / "config.json").read_text())
    tensors = best(spec)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return replace(spec, base_folder=folder, out_folder=tmp_path / "edited-out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["d2t"].zero_(), "all zero"),
        (lambda t: t.pop("d2t"), "found t2d"),
        (lambda t: t.pop("lm_head.weight"), "vocabulary map but no lm_head"),
        (lambda t: t.update({"fc.weight": torch.zeros(16, 32)}), r"fc\.weight is \(16, 32\) instead of \(16, 48\)"),
        (lambda t: t.update({"fc_norm.0.weight": torch.zeros(16)}), r"fc_norm\.0\.weight is not known"),
        (lambda t: t.update({"embed_tokens.weight": torch.zeros(40, 16)}), "embeddings of its own"),
    ],
)
def test_an_unsound_base_is_refused(spec, tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        run(edited_base(spec, tmp_path, change))


def test_a_base_that_names_its_layer_layers_0_is_read(spec, tmp_path):
    def rename(tensors):
        for name in [n for n in tensors if n.startswith("midlayer.")]:
            tensors["layers.0." + name.removeprefix("midlayer.")] = tensors.pop(name)

    run(edited_base(spec, tmp_path, rename))
