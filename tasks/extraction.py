"""The extraction task: the target's hidden states over every answer, captured inside vLLM."""

from dataclasses import asdict

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.drafter import fetch_from_hub
from tasks.hidden_states.index import INDEX_NAME
from tasks.hidden_states.spec import ExtractionResult, ExtractionSpec
from tasks.policies import stage_task
from tasks.stages import states_stage, training_stage
from tasks.system.disk import reserve_bytes
from tasks.system.engine_child import run_in_engine
from tasks.system.manifest import Manifest, write_manifest
from tasks.system.plan import model_facts, states_need_bytes
from tasks.system.responses import RESPONSES_NAME
from tasks.system.run import Product, Run, finished, product_of, require_content
from tasks.system.target import ensure_target, target_folder

MODULE = "tasks.hidden_states.extract"


def need_bytes(run: Run, responses: Product, drafter: Product) -> int:
    """Exact: the lengths are known now."""
    tokens = responses.facts["prompt_tokens"] + responses.facts["answer_tokens"]
    samples = responses.facts["training_samples"] + responses.facts["validation_samples"]
    return states_need_bytes(run.recipe, model_facts(run.recipe, target_folder(run)), tokens, samples)


def captured(run: Run, responses: Product, drafter: Product) -> Manifest | None:
    """The manifest of the states; also of states that a finished training has used up."""
    stage = states_stage(run, responses, drafter)
    if (manifest := finished(run, stage)) is not None:
        return manifest
    consumed = stage.consumed()
    trained = consumed and finished(run, training_stage(run, product_of(stage, consumed), drafter))
    return consumed if trained else None


@stage_task(
    "extraction",
    place=states_stage,
    made=captured,
    need_bytes=need_bytes,
    retries=2,
    retry_seconds=60,
    timeout_hours=48,
)
def extraction(run: Run, responses: Product, drafter: Product) -> Product:
    """Capture what the store lacks, in a child of the engine environment."""
    stage = states_stage(run, responses, drafter)
    require_content(responses)
    stage.folder.mkdir(parents=True, exist_ok=True)
    recipe = run.recipe
    spec = ExtractionSpec(
        target_folder=ensure_target(run, fetch_from_hub),
        responses_path=responses.folder / RESPONSES_NAME,
        out_folder=stage.folder,
        layer_ids=drafter.facts["layer_ids"],
        reserve_bytes=reserve_bytes(run.data_root, recipe.reserve_share),
        target=recipe.target,
        extraction=recipe.extraction,
    )
    environment, stall_seconds = recipe.extraction.engine.environment, recipe.extraction.stall_timeout_seconds
    with artifacts.progress_artifact("extraction") as on_progress:
        result = run_in_engine(
            run.engine_python, MODULE, spec, ExtractionResult, run.log_folder, on_progress, environment, stall_seconds
        )
    facts = asdict(result)
    shards = facts.pop("shards")
    get_run_logger().info("captured: %s", facts)
    return product_of(stage, write_manifest(stage, [INDEX_NAME, *shards], facts, shards, bookkeeping=(INDEX_NAME,)))
