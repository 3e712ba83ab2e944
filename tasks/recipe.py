"""A hero run as data: one frozen dataclass a stage, one default a field.

Every field is *identity* (it changes what a stage makes, so it is part of the stage's digest) or
*runtime* (it changes only how, so changing it keeps everything that is already on disk). Units are
in the names. The same classes are the form in the Prefect UI, the command line's ``--set``, and
the JSON specs that child processes get; nothing is parsed anywhere else.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from tasks.errors import RecipeError

T = TypeVar("T")

# Read by pydantic where Prefect builds the form: an unknown nested key is an error, not ignored.
FORBID_UNKNOWN: dict[str, str] = {"extra": "forbid"}


def _described(role: str, default: Any, description: str, limits: dict[str, float]) -> Any:
    metadata = {"role": role, "description": description, **limits}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def identity(description: str, default: Any = MISSING, **limits: float) -> Any:
    """A field that changes what the stage makes; ``limits`` are pydantic's ``ge``, ``gt``, ``le``, ``lt``."""
    return _described("identity", default, description, limits)


def runtime(description: str, default: Any = MISSING, **limits: float) -> Any:
    """A field that changes only how the stage works; ``limits`` as in ``identity``."""
    return _described("runtime", default, description, limits)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a checkpoint comes from."""

    kind: Literal["folder", "hub", "package-gguf"] = identity(
        "folder: a local checkpoint; hub: a repository at a revision; "
        "package-gguf: a GGUF file inside a package of the engine environment, dequantised once"
    )
    name: str = identity("folder path, hub repository, or <package>/<file>.gguf")
    revision: str = identity("hub revision: a commit or a tag; ignored for the other kinds", "main")

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the plan needs to know of a model before its checkpoint is there."""

    weights_bytes: int = runtime("all weight files together", ge=1)
    hidden_size: int = runtime("width of the residual stream", ge=1)
    layers: int = runtime("decoder layers", ge=1)
    vocab_tokens: int = runtime("size of the vocabulary", ge=1)
    shards: int = runtime("weight files; 0: not known", 0, ge=0)
    kv_lora_rank: int = runtime("MLA: width of the compressed keys and values; 0: the model has no MLA", 0, ge=0)
    qk_rope_head_dim: int = runtime("MLA: width of the rotary key; 0: the model has no MLA", 0, ge=0)
    kv_heads: int = runtime("key and value heads of a layer; 0: not known", 0, ge=0)
    head_dim: int = runtime("width of a head; 0: not known", 0, ge=0)
    date: str = runtime("when this was read from the checkpoint (YYYY-MM-DD)", "")

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Target:
    """The model that is served and that the drafter must fit."""

    source: ModelSource = identity("the checkpoint")
    dtype: Literal["bfloat16", "float16", "float32"] = identity("compute type, also of captured states", "bfloat16")
    window_tokens: int = identity("longest prompt plus answer that the engine accepts", 4096, ge=16)
    snapshot: ModelFacts = runtime("sizes to plan with until the checkpoint's own config is there")
    trust_remote_code: bool = identity("run the repository's own Python; only with a pinned revision", False)

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How vLLM is started for one purpose (serving, extraction, evaluation)."""

    arguments: list[str] = runtime("extra vLLM command-line arguments", [])
    environment: dict[str, str] = runtime(
        "extra environment variables of the engine process; secrets belong into the vLLM engine block", {}
    )

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Server:
    """The vLLM server that answers the prompts."""

    engine: Engine = runtime("arguments and environment", Engine())
    host: str = runtime("address to listen on", "127.0.0.1")
    port: int = runtime("port to listen on; 0 takes a free one", 0, ge=0, le=65535)
    load_timeout_seconds: float = runtime("longest load, whatever its progress", 7200.0, gt=0)
    stall_timeout_seconds: float = runtime("longest load without a new log line", 1800.0, gt=0)
    stop_grace_seconds: float = runtime("time between SIGTERM and SIGKILL", 10.0, ge=0)
    token_stall_seconds: float = runtime("longest time without a token while requests wait", 900.0, gt=0)
    restarts: int = runtime("how often a server that dies while it is asked is started again", 3, ge=0)
    endpoint: str = runtime(
        "address of somebody else's server (http://host:port): awaited, checked and used instead of starting one; of "
        "several, separated by commas, the first that answers is used",
        "",
    )
    endpoint_model: str = runtime("the id that it serves the target under; empty takes its only one, by name", "")
    take_over: bool = runtime("stop that server when the answers are complete, because its GPUs are needed", False)

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """The drafter that training starts from: downloaded, or made from scratch."""

    source: ModelSource | None = identity("checkpoint to finetune; null makes one from scratch", None)
    layer_ids: list[int] = identity(
        "auxiliary layers, vLLM's numbering (id j = residual stream after j decoder layers); "
        "empty takes the base drafter's, or [2, n//2, n-3] from scratch",
        [],
    )
    draft_vocab_tokens: int = identity("from scratch: size of the draft vocabulary", 32000, ge=1)
    intermediate_size: int = identity("from scratch: width of the MLP; 0 takes the target's", 0, ge=0)
    seed: int = identity("from scratch: seed of the initial weights", 0, ge=0)

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Which prompts are answered, and which are kept out of training.

    Rows are ordered by a hash of the seed and their content. The first ``evaluation_samples`` of
    that order are only ever used by the evaluation, the next ``validation_samples`` only to choose
    the best checkpoint, and training takes what follows: growing it keeps the other two.
    """

    source: str = runtime("JSONL file with `conversations: [{from, value}]` and `source`; its content is identity")
    training_samples: int = identity("prompts to train on", ge=1)
    validation_samples: int = identity("held-out prompts that choose the best checkpoint", 32, ge=1)
    evaluation_samples: int = identity("held-out prompts that the verdict is measured on", 80, ge=2)
    seed: int = identity("seed of the sample", 0, ge=0)

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How the prompts are answered."""

    max_new_tokens: int = identity("longest answer", 8192, ge=1)
    temperature: float = identity("sampling temperature", 0.0, ge=0)
    top_p: float = identity("nucleus of the sampling", 1.0, gt=0, le=1)
    in_flight: int = runtime("requests asked at once", 200, ge=1)
    request_timeout_seconds: float = runtime("longest wait for one answer", 3600.0, gt=0)
    request_retries: int = runtime("tries after the first, for timeouts, 429, 5xx and lost connections", 3, ge=0)
    most_truncated_share: float = runtime(
        "larger shares of answers cut at max_new_tokens stop the run", 0.5, ge=0, le=1
    )
    most_looping_share: float = runtime("larger shares of answers that repeat themselves stop the run", 0.1, ge=0, le=1)
    expected_answer_tokens: int = runtime("mean answer length that the plan assumes", 2986, ge=1)
    expected_prompt_tokens: int = runtime("mean prompt length that the plan assumes", 782, ge=1)

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """How hidden states are captured and stored."""

    layout: Literal["auto", "bf16", "fp8", "fp8+topk"] = identity(
        "what is stored for a token: states in bfloat16; in float8; or auxiliary states in float8 and, instead of the "
        "final state, the teacher's highest logits over the draft vocabulary; auto takes the most faithful that fits, "
        "once for a set of answers",
        "bf16",
    )
    top_k: int = identity("fp8+topk: logits kept of a token", 64, ge=1)
    windows: int = identity(
        "slices of the samples whose states are captured, trained on and deleted one after the other; 1: all at once; "
        "0 takes 1, or as few as fit where nothing fits at once, chosen once for a set of answers",
        0,
        ge=0,
    )
    shard_bytes: int = runtime("size at which a shard is closed", 2_000_000_000, ge=1)
    max_batched_tokens: int = runtime("tokens of one prefill step", 8192, ge=16)
    max_sequences: int = runtime("sequences of one prefill step", 64, ge=1)
    stall_timeout_seconds: float = runtime("longest time without progress, model load included", 3600.0, gt=0)
    engine: Engine = runtime("arguments (as --key=value) and environment", Engine())

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the drafter is trained."""

    unroll_steps: int = identity("drafting steps that training unrolls (K)", 3, ge=1, le=7)
    step_weight: float = identity("loss weight of step k is this to the power of k", 0.8, gt=0, le=1)
    epochs: int = identity("passes over the training samples", 1, ge=1)
    pack_tokens: int = identity("length that sequences are packed to", 4096, ge=16)
    packs_per_step: int = identity("packs of one optimizer step", 1, ge=1)
    optimizer: Literal["adamw", "muon"] = identity("muon: Muon for matrices, AdamW for the rest", "adamw")
    learning_rate: float = identity("peak learning rate", 2e-5, gt=0)
    warmup_share: float = identity("share of the steps that warm up", 0.03, ge=0, lt=1)
    final_learning_rate_share: float = identity("learning rate at the end, as a share of the peak", 0.0, ge=0, le=1)
    weight_decay: float = identity("decoupled weight decay", 0.0, ge=0)
    clip_norm: float = identity("gradient norm that is clipped to", 0.5, gt=0)
    pull_to_base: float = identity("L2-SP: weight of the squared distance to the base's weights", 0.0, ge=0)
    train_head: bool = identity("train the lm_head too", True)
    autocast: Literal["bfloat16", "float32"] = identity("compute type; master weights are always float32", "bfloat16")
    seed: int = identity("seed of the data order", 0, ge=0)
    validate_every_steps: int = identity("steps between validations", 200, ge=1)
    device: str = runtime("torch device", "cuda:0")
    checkpoint_every_seconds: float = runtime("time between resumable checkpoints", 600.0, gt=0)
    stall_timeout_seconds: float = runtime("longest time without progress", 3600.0, gt=0)
    environment: dict[str, str] = runtime("extra environment variables of the training process", {})

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How acceptance and speed are measured."""

    draft_tokens: int = identity("tokens drafted a step", 3, ge=1, le=7)
    max_new_tokens: int = identity("longest answer", 1024, ge=1)
    temperature: float = identity("sampling temperature", 0.0, ge=0)
    in_flight: int = identity("requests asked at once: the figures depend on it", 8, ge=1)
    confidence: float = identity("of the intervals", 0.95, gt=0, lt=1)
    least_gain: float = identity("smaller gains of acceptance length over the base are not called better", 0.01, ge=0)
    least_length: float = identity("a drafter below this acceptance length is not called better", 1.2, ge=1)
    engine: Engine = runtime("arguments and environment", Engine())

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The machine that the plan counts with, until an earlier run on the data root has measured it."""

    description: str = runtime("one line for people")
    gpus: int = runtime("cards that serve the target; 0: a machine without", ge=0)
    gpu_memory_bytes: int = runtime("memory of one card", 0, ge=0)
    engine_overhead_bytes: int = runtime("of a card, what vLLM takes beside weights and KV cache", 0, ge=0)
    free_bytes: int = runtime("free space under the data root, where it cannot be looked at; 0: not known", 0, ge=0)
    load_seconds: float = runtime("one load of the target", gt=0)
    generation_tokens_per_second: float = runtime("answer tokens of all requests in flight together", gt=0)
    extraction_tokens_per_second: float = runtime("prefill with capture, written to disk", gt=0)
    training_tokens_per_second: float = runtime("prompt and answer tokens of one epoch, on one device", gt=0)
    evaluation_tokens_per_second: float = runtime("answer tokens at the evaluation's own concurrency", gt=0)
    training_speedup_all_gpus: list[float] = runtime("least and most that all cards train faster than one", [])
    prices_per_hour_dollars: list[float] = runtime("lowest and highest price of the machine; empty: it costs none", [])
    reported_kv_tokens: dict[str, int] = runtime(
        "KV room that users of this machine report: KV type/context parallelism (bf16/1, fp8/8) to tokens", {}
    )
    assumed: list[str] = runtime("fields above that nobody has measured or reported: the plan marks them", [])
    rented: str = runtime("recipe for a rented machine, to compare with; empty: none", "")

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole hero run for one model on one kind of machine."""

    name: str = runtime("as in `hero-run recipes`")
    description: str = runtime("one line for people")
    data_root: str = runtime("folder that everything is written under")
    reserve_share: float = runtime("share of the volume that is left free", 0.05, ge=0, lt=1)
    hardware: Hardware = runtime("the machine, for the plan")
    target: Target = identity("the model")
    server: Server = runtime("the server that answers the prompts", Server())
    drafter: Drafter = identity("where training starts", Drafter())
    prompts: Prompts = identity("what is asked")
    inference: Inference = identity("how it is answered", Inference())
    extraction: Extraction = identity("how states are captured", Extraction())
    training: Training = identity("how the drafter is trained", Training())
    evaluation: Evaluation = identity("how the result is measured", Evaluation())

    __pydantic_config__: ClassVar = FORBID_UNKNOWN


def identity_of(value: Any) -> Any:
    """The identity fields of a dataclass, as plain JSON data (nested; runtime fields left out)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: identity_of(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.metadata.get("role") != "runtime"
        }
    return value


def changed(value: T, changes: Mapping[str, Any], path: str = "") -> T:
    """A copy of a frozen dataclass with some fields, also nested ones, replaced.

    Args:
        value: The dataclass instance to start from.
        changes: Field name to new value; a mapping where the field is itself a dataclass.
        path: Dotted name of ``value``, for messages.

    Raises:
        RecipeError: A name is not a field, or a value does not fit its type or limits.
    """
    known = {f.name: f for f in dataclasses.fields(value)}  # type: ignore[arg-type]
    replaced = {}
    for name, new in changes.items():
        dotted = f"{path}.{name}" if path else name
        if name not in known:
            raise RecipeError(f"recipe field {dotted!r} does not exist. Fields here: {', '.join(known)}.")
        old = getattr(value, name)
        if dataclasses.is_dataclass(old) and isinstance(new, Mapping):
            replaced[name] = changed(old, new, dotted)
        else:
            replaced[name] = _converted(_hints(type(value))[name], new, dotted)
            _check_limits(known[name].metadata, replaced[name], dotted)
    return dataclasses.replace(value, **replaced)  # type: ignore[type-var]


def to_json(value: Any) -> str:
    """A dataclass as indented JSON."""
    return json.dumps(dataclasses.asdict(value), indent=2, default=str)


def from_json(kind: type[T], text: str) -> T:
    """The dataclass that ``to_json`` wrote.

    Raises:
        RecipeError: A key is unknown or missing, or a value does not fit its field.
    """
    return _converted(kind, json.loads(text), kind.__name__)


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check_limits(metadata: Mapping[str, Any], value: Any, path: str) -> None:
    tests = {"ge": lambda v, x: v >= x, "gt": lambda v, x: v > x, "le": lambda v, x: v <= x, "lt": lambda v, x: v < x}
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    for name, holds in tests.items():
        if name in metadata and value is not None and not holds(value, metadata[name]):
            raise RecipeError(f"{path} must be {signs[name]} {metadata[name]}, found {value!r}.")


def _converted(kind: Any, value: Any, path: str) -> Any:
    """``value`` as ``kind``: the small part of a schema library that plain dataclasses need."""
    if kind is Any:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _converted_dataclass(typing.cast(type, kind), value, path)
    if origin is Literal:
        if value in arguments:
            return value
        raise RecipeError(f"{path} must be one of {', '.join(map(repr, arguments))}, found {value!r}.")
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _converted(next(a for a in arguments if a is not type(None)), value, path)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return origin(_converted(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {str(key): _converted(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is not int or not isinstance(value, bool)):
        return value
    wanted = getattr(kind, "__name__", str(kind)) if origin is None else str(kind)
    raise RecipeError(f"{path} must be {wanted}, found {value!r}.")


def _converted_dataclass(kind: type, value: Any, path: str) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise RecipeError(f"{path} must be an object with the fields of {kind.__name__}, found {value!r}.")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := set(value) - set(fields):
        raise RecipeError(f"{path} has no field {sorted(unknown)[0]!r}. Fields here: {', '.join(fields)}.")
    hints, built = _hints(kind), {}
    for name, f in fields.items():
        if name in value:
            built[name] = _converted(hints[name], value[name], f"{path}.{name}")
            _check_limits(f.metadata, built[name], f"{path}.{name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise RecipeError(f"{path} lacks the field {name!r}.")
    return kind(**built)
