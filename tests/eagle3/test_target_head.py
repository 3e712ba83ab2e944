"""Only the needed tensors are read, wherever they are and whatever their prefix."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tasks.eagle3.target_head import read_target_head
from tasks.errors import BadInput

EMBED, NORM, HEAD = torch.randn(10, 4), torch.rand(4), torch.randn(10, 4)


def sharded(folder, prefix="", tied=False, config=None):
    shards = {
        "a.safetensors": {f"{prefix}model.embed_tokens.weight": EMBED},
        "b.safetensors": {f"{prefix}model.layers.0.norm.weight": torch.zeros(4)},
        "c.safetensors": {f"{prefix}model.norm.weight": NORM},
    }
    if not tied:
        shards["c.safetensors"][f"{prefix}lm_head.weight"] = HEAD
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config or {"tie_word_embeddings": tied}))
    return folder


@pytest.mark.fault("only-needed-tensors")
@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_tensors_are_found_behind_any_prefix(tmp_path, prefix):
    head = read_target_head(sharded(tmp_path, prefix))
    assert torch.equal(head.embed_VD, EMBED)
    assert torch.equal(head.final_norm_D, NORM)
    assert torch.equal(head.lm_head_VD, HEAD)


def test_a_tied_head_is_the_embeddings(tmp_path):
    assert torch.equal(read_target_head(sharded(tmp_path, tied=True)).lm_head_VD, EMBED)


def test_tying_may_be_said_in_the_text_config(tmp_path):
    folder = sharded(tmp_path, tied=True, config={"text_config": {"tie_word_embeddings": True}})
    assert torch.equal(read_target_head(folder).lm_head_VD, EMBED)


def test_a_single_file_needs_no_index(tmp_path, target_folder):
    assert read_target_head(target_folder).embed_VD.shape == (40, 16)


@pytest.mark.fault("only-needed-tensors")
def test_shards_without_needed_tensors_may_be_absent(tmp_path):
    sharded(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    read_target_head(tmp_path)


@pytest.mark.fault("only-needed-tensors")
def test_a_missing_shard_is_named(tmp_path):
    sharded(tmp_path)
    (tmp_path / "c.safetensors").unlink()
    with pytest.raises(BadInput, match=r"c\.safetensors is missing; it holds model\.norm\.weight"):
        read_target_head(tmp_path)


@pytest.mark.fault("only-needed-tensors")
def test_a_cut_shard_is_named(tmp_path):
    sharded(tmp_path)
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-8])
    with pytest.raises(BadInput, match=r"a\.safetensors is not a whole safetensors file"):
        read_target_head(tmp_path)


def test_a_missing_head_of_an_untied_target_is_refused(tmp_path):
    sharded(tmp_path, tied=True, config={"tie_word_embeddings": False})
    with pytest.raises(BadInput, match=r"no lm_head\.weight"):
        read_target_head(tmp_path)
