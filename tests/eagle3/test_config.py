"""Layer ids and config.json of drafters."""

import pytest

from tasks.eagle3.config import drafter_config
from tasks.eagle3.initialize import initial_config
from tasks.eagle3.layer_ids import check_layer_ids, default_layer_ids, read_layer_ids, to_sglang
from tasks.errors import BadInput
from tasks.recipe import Drafter

# AQ-MedAI/Kimi-K2-Instruct-eagle3, the fields that are read.
KIMI = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 128,
    "num_hidden_layers": 1,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 262144,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
}


def test_defaults_are_an_early_a_middle_and_a_late_layer():
    assert default_layer_ids(61) == [2, 30, 58]


@pytest.mark.parametrize("layers", range(3, 12))
def test_defaults_are_usable_for_small_targets(layers):
    check_layer_ids(default_layer_ids(layers), layers, "x")


def test_sglang_numbers_the_same_tensors_one_lower():
    assert to_sglang([2, 30, 58]) == [1, 29, 57]


@pytest.mark.fault("bad-layer-ids")
@pytest.mark.parametrize("wrong", [[], [0, 2, 3], [2, 2, 3], [3, 2, 5], [1, 2, 7]])
def test_ids_that_vllm_would_not_honour_are_refused(wrong):
    with pytest.raises(BadInput, match=r"strictly increasing and within 1\.\.6"):
        check_layer_ids(wrong, 6, "config.json")


def test_a_nested_list_alone_is_read_as_vllm_reads_it():
    assert read_layer_ids(KIMI, "x") == [2, 30, 58]


def test_the_top_level_list_wins():
    assert read_layer_ids({**KIMI, "eagle_aux_hidden_state_layer_ids": [3, 31, 59]}, "x") == [3, 31, 59]


def test_a_config_without_ids_is_refused():
    with pytest.raises(BadInput, match=r"Set drafter\.layer_ids"):
        read_layer_ids({}, "x")


def test_the_recipe_overrules_the_files_ids():
    assert drafter_config(KIMI, [3, 31, 59], "x").layer_ids == (3, 31, 59)


def test_kimis_drafter_is_read():
    config = drafter_config(KIMI, [], "x")
    assert (config.rope_theta, config.draft_vocab_size, config.norm_before_residual) == (1e6, 32000, False)


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},
        {"num_hidden_layers": 2},
        {"norm_before_fc": True},
        {"target_hidden_size": 4096},
        {"eagle_config": {"use_aux_hidden_state": False}},
    ],
)
def test_a_variant_that_is_not_computed_is_refused(change):
    with pytest.raises(BadInput, match="does not compute"):
        drafter_config({**KIMI, **change}, [2, 30, 58], "x")


def test_scaled_rotary_is_refused():
    with pytest.raises(BadInput, match="'yarn'"):
        drafter_config({**KIMI, "rope_scaling": {"type": "yarn", "factor": 32}}, [2, 30, 58], "x")


def test_a_drafter_from_scratch_takes_the_targets_shape():
    target = {**KIMI, "num_hidden_layers": 61}
    config = initial_config(target, Drafter(draft_vocab_tokens=1000, intermediate_size=64), "x")
    assert (config.attention_heads, config.head_dim, config.intermediate_size) == (64, 128, 64)
    assert config.layer_ids == (2, 30, 58)


def test_a_drafter_from_scratch_for_a_target_with_mla_has_plain_heads():
    target = {**KIMI, "head_dim": None, "v_head_dim": 128, "num_hidden_layers": 61, "rope_scaling": {"type": "yarn"}}
    config = initial_config({"text_config": target}, Drafter(), "x")
    assert (config.head_dim, config.rope_theta) == (128, 1e6)
