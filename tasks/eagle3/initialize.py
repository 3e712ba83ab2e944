"""``python -m tasks.eagle3.initialize spec.json``: a base drafter from scratch, all but its lm_head and map.

Those depend on the draft vocabulary, which only the answers tell; training adds them.

Shapes: D hidden size; A auxiliary layers.
"""

from typing import Any

import torch
from torch import Tensor

from tasks.eagle3.config import CONFIG_NAME, DrafterConfig, language_config, read_config, rope_theta_of, vllm_config
from tasks.eagle3.drafter import Eagle3Drafter
from tasks.eagle3.export import rounded, save_checkpoint
from tasks.eagle3.layer_ids import check_layer_ids, default_layer_ids
from tasks.eagle3.spec import InitialDrafterResult, InitialDrafterSpec
from tasks.eagle3.target_head import read_target_head
from tasks.eagle3.warm_start import start_from_last_layer
from tasks.errors import BadInput
from tasks.recipe import Drafter
from tasks.system.child import Reporter, child_main

INITIAL_DEVIATION = 0.02


def initialize(spec: InitialDrafterSpec, reporter: Reporter) -> InitialDrafterResult:
    """Make and write the base.

    Raises:
        BadInput: The target's config is not one that a Llama drafter can be shaped after.
    """
    reporter.progress("initializing", 0, 1, "drafters")
    target = read_target_head(spec.target_folder)
    target_config = read_config(spec.target_folder)
    config = initial_config(target_config, spec.drafter, str(spec.target_folder / CONFIG_NAME))
    weights = random_weights(config, spec.drafter.seed)
    layers = language_config(target_config)["num_hidden_layers"]
    warm = start_from_last_layer(weights, spec.target_folder, target, layers)
    print("the drafter starts as the target's last layer" if warm else "the drafter starts random", flush=True)
    # The reserve was asked for before the stage began.
    save_checkpoint(spec.out_folder, rounded(weights), vllm_config(config, {}), reserve_bytes=0)
    reporter.progress("initializing", 1, 1, "drafters")
    parameters = sum(tensor.numel() for tensor in weights.values())
    return InitialDrafterResult(parameters=parameters, layer_ids=list(config.layer_ids))


def initial_config(target_config: dict[str, Any], drafter: Drafter, where: str) -> DrafterConfig:
    """The drafter's shape: the target's heads, widths and rotary base unless the recipe says otherwise.

    Raises:
        BadInput: A field is missing or the layer ids are not the target's.
    """
    config = language_config(target_config)
    try:
        heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
        layer_ids = drafter.layer_ids or default_layer_ids(layers)
        check_layer_ids(layer_ids, layers, where)
        return DrafterConfig(
            hidden_size=config["hidden_size"],
            intermediate_size=drafter.intermediate_size or config["intermediate_size"],
            attention_heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            # With MLA the width of a value head is the plain one: 128 for Kimi.
            head_dim=config.get("head_dim") or config.get("v_head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            draft_vocab_size=min(drafter.draft_vocab_tokens, config["vocab_size"]),
            layer_ids=tuple(layer_ids),
            rms_norm_eps=config["rms_norm_eps"],
            # A scaled target needs no scaled drafter: AQ-MedAI's for Kimi has plain rotary too.
            rope_theta=rope_theta_of(config),
            max_position_embeddings=config["max_position_embeddings"],
        )
    except KeyError as missing:
        raise BadInput(f"{where} lacks the field {missing}, which the drafter's shape is taken from.") from None


def random_weights(config: DrafterConfig, seed: int) -> dict[str, Tensor]:
    """Random matrices and unit norms, all but the lm_head."""
    generator = torch.Generator().manual_seed(seed)
    drafter = Eagle3Drafter(config)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, INITIAL_DEVIATION, generator=generator)
    return {name: tensor for name, tensor in drafter.state_dict().items() if not name.startswith("lm_head")}


if __name__ == "__main__":
    child_main(InitialDrafterSpec, initialize)
