"""The training task: an EAGLE-3 drafter trained on the captured states and exported for vLLM."""

import shutil
from dataclasses import asdict
from pathlib import Path

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.drafter import fetch_from_hub
from tasks.eagle3.spec import CHECKPOINTS_NAME, TrainingResult, TrainingSpec
from tasks.policies import stage_task
from tasks.stages import training_stage
from tasks.system.disk import reserve_bytes
from tasks.system.engine_child import run_in_engine
from tasks.system.manifest import write_manifest
from tasks.system.plan import model_facts, training_need_bytes
from tasks.system.plots import plot_training
from tasks.system.run import Product, Run, product_of, require_content
from tasks.system.target import ensure_target, target_folder

MODULE = "tasks.eagle3.train"
CURVE_NAME, CURVE_PICTURE_NAME = "curve.csv", "curve.png"


def need_bytes(run: Run, states: Product, drafter: Product) -> int:
    """Checkpoints and exports."""
    return training_need_bytes(run.recipe, model_facts(run.recipe, target_folder(run)))


@stage_task("training", place=training_stage, need_bytes=need_bytes, retries=2, retry_seconds=60, timeout_hours=48)
def training(run: Run, states: Product, drafter: Product) -> Product:
    """Train in a child of the engine environment, from its newest checkpoint if there is one."""
    stage = training_stage(run, states, drafter)
    require_content(drafter)
    stage.folder.mkdir(parents=True, exist_ok=True)
    recipe = run.recipe
    spec = TrainingSpec(
        target_folder=ensure_target(run, fetch_from_hub),
        base_folder=Path(drafter.facts["checkpoint"]),
        states_folder=states.folder,
        out_folder=stage.folder,
        reserve_bytes=reserve_bytes(run.data_root, recipe.reserve_share),
        drafter=recipe.drafter,
        training=recipe.training,
    )
    environment, stall_seconds = recipe.training.environment, recipe.training.stall_timeout_seconds
    with artifacts.progress_artifact("training") as on_progress:
        result = run_in_engine(
            run.engine_python, MODULE, spec, TrainingResult, run.log_folder, on_progress, environment, stall_seconds
        )
    facts = asdict(result)
    files = facts.pop("files")
    get_run_logger().info("trained: %s", facts)
    plot_training(stage.folder / CURVE_NAME, stage.folder / CURVE_PICTURE_NAME)
    artifacts.markdown("training-curve", "# Training", [stage.folder / CURVE_PICTURE_NAME], "Loss and acceptance")
    # The curve has rates in it: the same weights, trained again, are the same product.
    curve = (CURVE_NAME, CURVE_PICTURE_NAME)
    manifest = write_manifest(stage, [*files, CURVE_PICTURE_NAME], facts, bookkeeping=curve)
    # Not before: without a manifest the next start goes on from them, a finished training included.
    shutil.rmtree(stage.folder / CHECKPOINTS_NAME)
    return product_of(stage, manifest)
