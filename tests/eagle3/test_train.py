"""The trainer as its child process runs it: resume, stop, refusals, and what it leaves behind."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_states import LAYER_IDS, VOCAB, write_states
from small_trainings import STEPS, best, curve, run, with_training

from tasks.errors import BadInput, BadProduct, Stopped

pytestmark = pytest.mark.usefixtures("reported_every_step")


@pytest.mark.fault("resume-is-exact")
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("autocast", ["bfloat16", "float32"])
def test_ten_steps_equal_five_and_resume_and_five(spec, tmp_path, optimizer, autocast):
    whole = with_training(spec, optimizer=optimizer, autocast=autocast, pull_to_base=1e-3)
    broken = replace(whole, out_folder=tmp_path / "broken")
    result = run(whole)
    assert result.steps == STEPS
    with pytest.raises(Stopped, match="after step 5 of 10"):
        run(broken, lambda step: step == 5)
    assert run(broken) == result
    assert curve(broken) == curve(whole)
    for name, tensor in best(whole).items():
        assert torch.equal(best(broken)[name], tensor), name


def test_the_result_lists_everything_but_the_checkpoints(spec):
    result = run(spec)
    left = {str(p.relative_to(spec.out_folder)) for p in spec.out_folder.rglob("*") if p.is_file()}
    assert {path for path in left if not path.startswith("checkpoints/")} == set(result.files)


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


@pytest.mark.fault("base-vocab-map-kept")
def test_finetuning_keeps_the_vocabulary_map_byte_for_byte(spec, tmp_path):
    """Also on answers whose own most frequent tokens are others."""
    run(spec)
    others = replace(spec, states_folder=write_states(tmp_path / "others", first_token=10), out_folder=tmp_path / "o")
    run(others)
    second = replace(others, base_folder=spec.out_folder / "best", out_folder=tmp_path / "second")
    run(second)
    for name in ("d2t", "t2d"):
        assert torch.equal(best(second)[name], best(spec)[name])
        assert not torch.equal(best(second)[name], best(others)[name])


@pytest.mark.fault("bad-vocab-map")
def test_a_whole_draft_vocabulary_leaves_the_map_out(spec):
    run(replace(spec, drafter=replace(spec.drafter, draft_vocab_tokens=VOCAB)))
    assert not {"d2t", "t2d"} & set(best(spec))


@pytest.mark.fault("base-vocab-map-kept")
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


@pytest.mark.fault("nan-loss")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_the_step_and_the_samples_and_leaves_no_best(spec, tmp_path, poison):
    bad = replace(spec, states_folder=write_states(tmp_path / "bad", poisoned="s2", poison=poison))
    with pytest.raises(BadProduct, match=r"step 1 is NaN or Inf, with the samples .*s2"):
        run(with_training(bad, pack_tokens=200))
    assert not (spec.out_folder / "best").exists()
    assert not list((spec.out_folder / "checkpoints").iterdir())


@pytest.mark.fault("nan-loss")
def test_nothing_is_saved_after_a_loss_that_is_not_finite(spec, tmp_path, happened):
    """Every step is saved; the sample comes in one that is not the first."""
    bad = replace(spec, states_folder=write_states(tmp_path / "bad", poisoned="s2"))
    with pytest.raises(BadProduct) as caught:
        run(with_training(bad, pack_tokens=16, checkpoint_every_seconds=1e-9))
    newest = torch.load(max((spec.out_folder / "checkpoints").glob("*.pt")))
    step = newest["progress"]["step"]
    assert step > 0 and f"Nothing was saved after step {step}." in str(caught.value)
    assert all(bool(tensor.isfinite().all()) for tensor in newest["weights"].values())
    happened(f"stopped in step {step + 1}, naming sample s2; the newest checkpoint is of step {step} and finite")


@pytest.mark.fault("layer-ids-differ")
def test_states_of_other_layers_are_refused(spec, tmp_path):
    other = replace(spec, states_folder=write_states(tmp_path / "other", layer_ids=[1, 2, 5]))
    with pytest.raises(BadInput, match=r"reads the layers \[1, 3, 5\].* holds the layers \[1, 2, 5\]"):
        run(other)


@pytest.mark.fault("norm-confusion")
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


@pytest.mark.fault("bad-vocab-map")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["d2t"].zero_(), "all zero"),
        (lambda t: t.pop("d2t"), "found t2d"),
        (lambda t: (t.pop("d2t"), t.pop("t2d")), "found neither"),
        (lambda t: t["t2d"].fill_(True), "40 tokens in t2d and 20 rows in lm_head"),
        (lambda t: t["d2t"].add_(40), r"outside 0\.\.39"),
    ],
)
def test_a_base_with_an_unsound_map_is_refused(spec, tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        run(edited_base(spec, tmp_path, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
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
