"""Bases from scratch."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_states import HIDDEN

from tasks.eagle3.initialize import initialize
from tasks.eagle3.spec import InitialDrafterSpec
from tasks.errors import BadInput
from tasks.recipe import Drafter
from tasks.system.child import Reporter


def made(tmp_path, target_folder, **drafter):
    out = tmp_path / "initial"
    spec = InitialDrafterSpec(target_folder=target_folder, out_folder=out, drafter=Drafter(**drafter))
    return initialize(spec, Reporter(tmp_path / "progress")), load_file(out / "model.safetensors"), out


@pytest.fixture
def llama_target(target_folder):
    """The tiny target with a whole last layer."""
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "self_attn.q_proj": (32, HIDDEN),
        "self_attn.k_proj": (16, HIDDEN),
        "self_attn.v_proj": (16, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 32),
        "mlp.gate_proj": (24, HIDDEN),
        "mlp.up_proj": (24, HIDDEN),
        "mlp.down_proj": (HIDDEN, 24),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    tensors = load_file(target_folder / "model.safetensors")
    for name, shape in shapes.items():
        tensors[f"model.layers.5.{name}.weight"] = torch.randn(shape, generator=generator).bfloat16()
    save_file(tensors, target_folder / "model.safetensors")
    return target_folder


def test_the_base_lacks_what_depends_on_the_answers(tmp_path, target_folder):
    result, weights, _ = made(tmp_path, target_folder)
    assert not {"lm_head.weight", "d2t", "t2d"} & set(weights)
    assert result.parameters == sum(tensor.numel() for tensor in weights.values())


def test_layer_ids_default_to_early_middle_late(tmp_path, target_folder):
    result, _, out = made(tmp_path, target_folder)
    assert result.layer_ids == [1, 3, 5]
    assert json.loads((out / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == result.layer_ids


@pytest.mark.fault("bad-layer-ids")
def test_layer_ids_that_the_target_lacks_are_refused(tmp_path, target_folder):
    with pytest.raises(BadInput, match=r"within 1\.\.6"):
        made(tmp_path, target_folder, layer_ids=[1, 3, 7])


def test_the_seed_decides_the_weights(tmp_path, target_folder):
    one, again, other = (made(tmp_path, target_folder, layer_ids=[1, 3, 5], seed=s)[1]["fc.weight"] for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_llama_target_gives_its_last_layer(tmp_path, llama_target):
    _, weights, _ = made(tmp_path, llama_target, layer_ids=[1, 3, 5])
    target = load_file(llama_target / "model.safetensors")
    last = "model.layers.5."
    assert torch.equal(weights["midlayer.mlp.up_proj.weight"], target[last + "mlp.up_proj.weight"])
    assert torch.equal(weights["midlayer.hidden_norm.weight"], target[last + "input_layernorm.weight"])
    q_proj = weights["midlayer.self_attn.q_proj.weight"]
    assert torch.equal(q_proj[:, HIDDEN:], target[last + "self_attn.q_proj.weight"])
    assert torch.equal(weights["norm.weight"], target["model.norm.weight"])


def test_another_width_starts_random(tmp_path, llama_target):
    _, weights, _ = made(tmp_path, llama_target, layer_ids=[1, 3, 5], intermediate_size=20)
    assert torch.equal(weights["midlayer.hidden_norm.weight"], torch.ones(HIDDEN).bfloat16())
