"""Sizes of the target: its own config when it is there, the snapshot until then, and where the two differ."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.recipes import named
from tasks.errors import BadInput
from tasks.system.plan.model import drafter_parameters, facts_basis, model_facts, snapshot_differences

SMOLLM2 = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "vocab_size": 49_152,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
WEIGHTS_BYTES = 269_060_552


@pytest.fixture
def recipe():
    return named("smollm2-cpu")


def checkpoint(folder: Path, config: dict[str, Any], weights_bytes: int = WEIGHTS_BYTES) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as out:
        out.truncate(weights_bytes)  # sparse
    return folder


def test_until_the_checkpoint_is_there_the_snapshot_is_used_with_its_date(recipe, tmp_path):
    assert model_facts(recipe, tmp_path) == recipe.target.snapshot
    assert facts_basis(recipe, tmp_path) == (
        f"the recipe's snapshot of 2026-12-01, because {tmp_path} is not there yet"
    )


def test_the_checkpoints_own_figures_are_used_when_it_is_there(recipe, tmp_path):
    facts = model_facts(recipe, checkpoint(tmp_path, SMOLLM2 | {"num_hidden_layers": 12}))
    assert (facts.layers, facts.hidden_size, facts.kv_heads, facts.head_dim) == (12, 576, 3, 64)
    assert (facts.weights_bytes, facts.shards) == (WEIGHTS_BYTES, 1)
    assert facts_basis(recipe, tmp_path) == f"config and index in {tmp_path}"


def test_a_multimodal_config_is_read_in_its_text_part(recipe, tmp_path):
    text = SMOLLM2 | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    facts = model_facts(recipe, checkpoint(tmp_path, {"text_config": text, "vision_config": {}}))
    assert (facts.kv_lora_rank, facts.qk_rope_head_dim) == (512, 64)


def test_of_a_checkpoint_that_is_being_fetched_the_index_tells_the_weights(recipe, tmp_path):
    checkpoint(tmp_path, SMOLLM2)
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = {"metadata": {"total_size": 300_000_000}, "weight_map": shards}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    facts = model_facts(recipe, tmp_path)
    assert (facts.weights_bytes, facts.shards) == (300_000_000, 2)


def test_a_snapshot_that_is_right_is_not_mentioned(recipe, tmp_path):
    assert snapshot_differences(recipe, checkpoint(tmp_path, SMOLLM2)) == []


def test_the_field_that_differs_is_named_with_both_values(recipe, tmp_path):
    (sentence,) = snapshot_differences(recipe, checkpoint(tmp_path, SMOLLM2 | {"hidden_size": 640, "head_dim": 64}))
    assert sentence == (
        "the recipe's snapshot of 2026-12-01 says target.snapshot.hidden_size = 576, the checkpoint in "
        f"{tmp_path} has 640. The plan counts with the checkpoint."
    )


@pytest.mark.parametrize(("share", "told"), [(1.01, 0), (1.1, 1)])
def test_weights_may_be_rounded_but_not_wrong(recipe, tmp_path, share, told):
    assert len(snapshot_differences(recipe, checkpoint(tmp_path, SMOLLM2, round(WEIGHTS_BYTES * share)))) == told


def test_a_field_that_the_snapshot_leaves_out_cannot_differ(tmp_path):
    recipe = named("smollm2-cpu", {"target": {"snapshot": {"kv_heads": 0, "head_dim": 0, "shards": 0}}})
    assert snapshot_differences(recipe, checkpoint(tmp_path, SMOLLM2)) == []


def test_a_config_that_is_torn_is_named(recipe, tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config.json is not JSON"):
        model_facts(recipe, tmp_path)


def test_kimis_snapshot_is_dated_and_has_what_the_plan_needs():
    facts = named("kimi-k25").target.snapshot
    assert facts.date and (facts.shards, facts.kv_lora_rank, facts.qk_rope_head_dim) == (119, 512, 64)


def test_the_drafter_of_the_reference_run_has_1_26_billion_parameters():
    recipe = named("kimi-k25")
    # 8 x 7168^2 attention + 3 x 7168^2 fusion + 3 x 7168 x 21504 MLP + 32000 x 7168 head.
    assert drafter_parameters(recipe, recipe.target.snapshot) == 1_256_980_480
