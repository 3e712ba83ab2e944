"""What the capture needs to find in vLLM's model and model runner, and refuses to do without."""

from typing import Any

from torch import nn

from tasks.errors import EngineRejected


def decoder_stack(model: nn.Module) -> Any:
    """The module with ``layers`` and ``norm``, in dense models and in wrapped ones (``language_model.model``).

    Raises:
        EngineRejected: There is none.
    """
    module = model
    while True:
        children = dict(module.named_children())
        if "layers" in children and "norm" in children:
            return module
        inner = [children[name] for name in ("language_model", "model") if name in children]
        if not inner:
            raise EngineRejected(
                f"hidden states are captured from a module with `layers` and `norm`, but {type(model).__name__} has "
                f"none below `language_model` or `model` (found {sorted(children)} in {type(module).__name__})."
            )
        module = inner[0]


def check_runner(model_runner: Any) -> None:
    """Whether a step's packing can be read from this runner, and every rank sees whole states.

    Raises:
        EngineRejected: It is not vLLM's V1 runner, or the parallelism splits layers or tokens.
    """
    missing = [name for name in ("input_batch", "requests", "execute_model") if not hasattr(model_runner, name)]
    if missing:
        raise EngineRejected(
            f"the capture reads batches from vLLM's V1 model runner; {type(model_runner).__module__} lacks {missing}. "
            "Set VLLM_USE_V2_MODEL_RUNNER=0 and use a vLLM that honours it."
        )
    parallel = model_runner.vllm_config.parallel_config
    sizes = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
    }
    if split := {name: size for name, size in sizes.items() if size > 1}:
        raise EngineRejected(
            f"hidden states are captured where one rank sees every layer and token, found {split}. "
            "Remove these from extraction.engine.arguments; tensor and expert parallelism are fine."
        )
    if model_runner.vllm_config.speculative_config is not None:
        raise EngineRejected("extraction runs without a drafter. Remove --speculative-config from its arguments.")
