"""The extraction task: the target's hidden states over every answer, captured inside vLLM."""

from dataclasses import asdict, replace
from pathlib import Path

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.drafter import fetch_from_hub
from tasks.hidden_states.index import INDEX_NAME
from tasks.hidden_states.spec import ExtractionResult, ExtractionSpec
from tasks.hidden_states.windows import Window, size_of_window
from tasks.planning import bytes_in
from tasks.policies import stage_task
from tasks.stages import resolved_layout, states_stage
from tasks.system import timings
from tasks.system.disk import reserve_bytes
from tasks.system.engine_child import run_in_engine
from tasks.system.manifest import write_manifest
from tasks.system.plan.model import model_facts
from tasks.system.plan.needs import store_bytes
from tasks.system.plan.tokens import counted_tokens
from tasks.system.responses import RESPONSES_NAME, read_responses
from tasks.system.run import Product, Run, product_of, require_content
from tasks.system.target import ensure_target, target_folder
from tasks.windows import captured

MODULE = "tasks.hidden_states.extract"


def need_bytes(run: Run, responses: Product, drafter: Product, window: Window) -> int:
    """Exact: the lengths are known now, and what is captured already is not written again."""
    stage, (samples, tokens) = states_stage(run, responses, drafter, window), window_size(responses, window)
    facts, layout = model_facts(run.recipe, target_folder(run)), resolved_layout(run, responses, drafter)
    whole = store_bytes(run.recipe, facts, layout, tokens, samples)
    return max(0, whole - bytes_in(stage.folder))


def window_size(responses: Product, window: Window) -> tuple[int, int]:
    """Samples and tokens of a window."""
    if window.is_whole:
        counted = counted_tokens(responses.facts)
        return counted.samples, counted.total
    return size_of_window(read_responses(responses.folder / RESPONSES_NAME), window)


@stage_task(
    "extraction",
    place=states_stage,
    made=captured,
    need_bytes=need_bytes,
    retries=2,
    retry_seconds=60,
    timeout_hours=48,
)
def extraction(run: Run, responses: Product, drafter: Product, window: Window) -> Product:
    """Capture what the store of a window lacks, in a child of the engine environment."""
    stage = states_stage(run, responses, drafter, window)
    require_content(responses)
    require_content(drafter)
    stage.folder.mkdir(parents=True, exist_ok=True)
    recipe = run.recipe
    spec = ExtractionSpec(
        target_folder=ensure_target(run, fetch_from_hub),
        responses_path=responses.folder / RESPONSES_NAME,
        out_folder=stage.folder,
        layer_ids=drafter.facts["layer_ids"],
        reserve_bytes=reserve_bytes(run.data_root, recipe.reserve_share),
        target=recipe.target,
        extraction=replace(
            recipe.extraction,
            layout=resolved_layout(run, responses, drafter),
            # Specs are files: what may hold a secret goes by the environment.
            engine=replace(recipe.extraction.engine, environment={}),
        ),
        drafter_folder=Path(drafter.facts["checkpoint"]),
        draft_vocab_tokens=recipe.drafter.draft_vocab_tokens,
        window=window,
    )
    environment, stall_seconds = recipe.extraction.engine.environment, recipe.extraction.stall_timeout_seconds
    _, tokens = window_size(responses, window)
    with (
        artifacts.progress_artifact("extraction") as publish,
        timings.metered(run, "extraction", publish, tokens) as on_progress,
    ):
        result = run_in_engine(
            run.engine_python, MODULE, spec, ExtractionResult, run.log_folder, on_progress, environment, stall_seconds,
            wind_down_at_seconds=run.deadline.of_stages.wind_down_at_seconds,
            grace_seconds=run.deadline.of_stages.grace_seconds,
        )  # fmt: skip
    facts = asdict(result)
    shards, files = facts.pop("shards"), [INDEX_NAME, *result.draft_vocab_files]
    get_run_logger().info("captured: %s", facts)
    return product_of(stage, write_manifest(stage, [*files, *shards], facts, shards, bookkeeping=(INDEX_NAME,)))
