"""What is checked of the target before it is loaded."""

import json

import pytest

from tasks.errors import BadInput, RecipeError
from tasks.hidden_states.target import TargetShape, check_layer_ids, read_target_shape

SIZES = {"num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840}


@pytest.mark.parametrize("config", [SIZES, {"model_type": "kimi_k25", "text_config": SIZES}])
def test_sizes_are_read_from_dense_and_nested_configs(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_target_shape(tmp_path) == TargetShape(61, 7168, 163840)


def test_a_missing_size_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "text_config": {"hidden_size": 1}}))
    with pytest.raises(BadInput, match="num_hidden_layers is missing"):
        read_target_shape(tmp_path)


@pytest.mark.fault("bad-layer-ids")
@pytest.mark.parametrize("layer_ids", [[], [0, 2], [2, 62], [2, 2], [5, 2]])
def test_layer_ids_must_increase_and_name_decoder_layers(layer_ids):
    with pytest.raises(RecipeError, match=r"strictly increasing and lie in 1\.\.61.*found \["):
        check_layer_ids(layer_ids, TargetShape(61, 7168, 163840))


@pytest.mark.fault("bad-layer-ids")
@pytest.mark.parametrize("layer_ids", [[1], [2, 30, 58], [1, 61]])
def test_every_decoder_layer_can_be_captured(layer_ids):
    check_layer_ids(layer_ids, TargetShape(61, 7168, 163840))
