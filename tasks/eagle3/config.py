"""The shape of a drafter and its config.json, as vLLM's ``llama_eagle3.py`` reads it; torch-free."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.eagle3 import layer_ids as ids
from tasks.errors import BadInput

CONFIG_NAME = "config.json"

# Variants that vLLM knows and this drafter does not compute: loading one would train another model.
UNSUPPORTED_FLAGS = ("attention_bias", "mlp_bias", "norm_before_fc", "fc_norm", "parallel_drafting")


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Everything that shapes the drafter's computation."""

    hidden_size: int
    """Width of the drafter, equal to the target's: the embeddings are shared."""
    intermediate_size: int
    """Width of the MLP."""
    attention_heads: int
    """Query heads."""
    key_value_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of one head."""
    vocab_size: int
    """Ids of the target's tokenizer."""
    draft_vocab_size: int | None
    """Ids that the drafter can draft; None while the vocabulary map is not made yet."""
    layer_ids: tuple[int, ...]
    """Auxiliary layers, vLLM's numbering."""
    rms_norm_eps: float
    """Added to the mean square in every norm."""
    rope_theta: float
    """Base of the rotary frequencies."""
    max_position_embeddings: int
    """Longest sequence."""
    norm_before_residual: bool = False
    """The residual that enters the block is taken after ``hidden_norm``."""
    norm_output: bool = False
    """The next drafting step gets the normed output."""


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint folder's config.json as it is.

    Raises:
        BadInput: It is absent or not a JSON object.
    """
    path = folder / CONFIG_NAME
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a readable config ({error}). Name a folder with a whole checkpoint.") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} must hold a JSON object, found {type(config).__name__}.")
    return config


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a target's config.json that describes the language model (nested in multimodal ones)."""
    return config.get("text_config") or config


def rope_theta_of(config: Mapping[str, Any]) -> float:
    """The rotary base, from ``rope_parameters`` (transformers 5) or ``rope_theta`` (before)."""
    parameters = config.get("rope_parameters") or {}
    return float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))


def _refuse_scaled_rotary(config: Mapping[str, Any], where: str) -> None:
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise BadInput(f"{where}: rotary scaling {kind!r} is not supported for a drafter; only plain rotary is.")


def drafter_config(config: Mapping[str, Any], layer_ids: list[int], where: str) -> DrafterConfig:
    """Read a drafter's config.json.

    Args:
        config: The JSON object.
        layer_ids: Auxiliary layers to use (vLLM's numbering); empty takes the file's.
        where: The file, for messages.

    Raises:
        BadInput: A field is missing, or the file asks for a variant that is not computed here.
    """
    _refuse_variants(config, where)
    _refuse_scaled_rotary(config, where)
    try:
        heads = config["num_attention_heads"]
        return DrafterConfig(
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            attention_heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            draft_vocab_size=config.get("draft_vocab_size"),
            layer_ids=tuple(layer_ids or ids.read_layer_ids(config, where)),
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=rope_theta_of(config),
            max_position_embeddings=config["max_position_embeddings"],
            norm_before_residual=_flag(config, "norm_before_residual"),
            norm_output=_flag(config, "norm_output"),
        )
    except KeyError as missing:
        raise BadInput(
            f"{where} lacks the field {missing}. It must be the config.json of an EAGLE-3 drafter."
        ) from None


def _flag(config: Mapping[str, Any], name: str) -> bool:
    return bool(config.get(name, False))


def _refuse_variants(config: Mapping[str, Any], where: str) -> None:
    nested = config.get("eagle_config") or {}
    wrong = [name for name in UNSUPPORTED_FLAGS if config.get(name) or nested.get(name)]
    wrong += [
        f"{name}={config[name]!r}"
        for name, good in (("num_hidden_layers", 1), ("logit_scale", 1.0), ("hidden_act", "silu"))
        if config.get(name, good) != good
    ]
    if not nested.get("use_aux_hidden_state", True):
        wrong.append("use_aux_hidden_state=False")
    if config.get("target_hidden_size", config.get("hidden_size")) != config.get("hidden_size"):
        wrong.append(f"target_hidden_size={config['target_hidden_size']}")
    if wrong:
        raise BadInput(
            f"{where} asks for {', '.join(wrong)}, which this trainer does not compute. "
            "Use a drafter with one plain Llama layer, as AQ-MedAI's and lightseek's are."
        )


def vllm_config(config: DrafterConfig, base: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json with which vLLM loads the drafter.

    Args:
        config: The drafter.
        base: The config.json that training started from; fields not named here are kept.
    """
    rope = {"rope_theta": config.rope_theta, "rope_type": "default"}
    nested = {
        **(base.get("eagle_config") or {}),
        "use_aux_hidden_state": True,
        ids.KEY: ids.to_sglang(config.layer_ids),
    }
    return {
        **base,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": rope,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": False,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        ids.KEY: list(config.layer_ids),
        "eagle_config": nested,
    }
