"""What the plan needs to know of vLLM's command line, read in one place."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.errors import RecipeError
from tasks.recipe import Engine

GIB = 1024**3
CPU_KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
DEFAULT_MEMORY_SHARE = 0.92
DEFAULT_SEQUENCES = 256
KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_ds_mla": 1}
"""vLLM's names of the KV cache's type to bytes a value; auto is the model's own, 16 bits here."""

SHORT_NAMES = {"-tp": "--tensor-parallel-size", "-dcp": "--decode-context-parallel-size"}


@dataclass(frozen=True)
class EngineFacts:
    """How one engine uses the cards."""

    tensor_parallel: int
    context_parallel: int
    """Decode context parallelism: the KV cache of a sequence is spread over this many cards."""
    memory_share: float
    kv_type: str
    most_sequences: int
    cpu_kv_bytes: int
    """KV room of the CPU build, which is told it; 0 on cards."""
    is_eager: bool

    @property
    def kv_bytes(self) -> int:
        """Bytes of one value in the KV cache."""
        return KV_BYTES[self.kv_type]

    @property
    def kv_name(self) -> str:
        """bf16 or fp8."""
        return "fp8" if self.kv_bytes == 1 else "bf16"


def engine_facts(engine: Engine) -> EngineFacts:
    """Read the arguments, ``--key=value`` and ``--key value`` alike, the last one winning as in vLLM.

    Raises:
        RecipeError: A value that the plan counts with is not a number, or a KV type is not known.
    """
    given = _pairs(engine.arguments)
    kv_type = given.get("--kv-cache-dtype", "auto")
    if kv_type not in KV_BYTES:
        raise RecipeError(
            f"--kv-cache-dtype must be one of {', '.join(KV_BYTES)} to be planned with, found {kv_type!r}."
        )
    return EngineFacts(
        tensor_parallel=int(_number(given, "--tensor-parallel-size", 1)),
        context_parallel=int(_number(given, "--decode-context-parallel-size", 1)),
        memory_share=_number(given, "--gpu-memory-utilization", DEFAULT_MEMORY_SHARE),
        kv_type=kv_type,
        most_sequences=int(_number(given, "--max-num-seqs", DEFAULT_SEQUENCES)),
        cpu_kv_bytes=round(_number(engine.environment, CPU_KV_VARIABLE, 0) * GIB),
        is_eager="--enforce-eager" in given,
    )


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for position, argument in enumerate(arguments):
        if not argument.startswith("-"):
            continue
        name, equals, value = argument.partition("=")
        following = arguments[position + 1] if position + 1 < len(arguments) else "-"
        if not equals:
            value = "" if following.startswith("-") else following
        name = SHORT_NAMES.get(name, name)
        pairs[f"--{name.removeprefix('--').replace('_', '-')}"] = value
    return pairs


def _number(given: dict[str, str], name: str, default: float) -> float:
    try:
        return float(given[name]) if name in given else default
    except ValueError as error:
        raise RecipeError(f"{name} must be a number to be planned with, found {given[name]!r}.") from error
