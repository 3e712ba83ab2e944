"""The training task: an EAGLE-3 drafter trained on the captured states and exported for vLLM."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.drafter import fetch_from_hub
from tasks.eagle3.spec import CHECKPOINTS_NAME, TrainingResult, TrainingSpec, WindowedTraining
from tasks.hidden_states.windows import Window
from tasks.policies import stage_task
from tasks.stages import responses_stage, training_stage
from tasks.system import timings
from tasks.system.disk import reserve_bytes
from tasks.system.engine_child import run_in_engine
from tasks.system.manifest import Manifest, Stage, write_manifest
from tasks.system.plan.model import model_facts
from tasks.system.plan.needs import training_bytes
from tasks.system.plan.tokens import counted_tokens
from tasks.system.plan.units import decimal_bytes
from tasks.system.plots import plot_training
from tasks.system.responses import RESPONSES_NAME
from tasks.system.run import Product, Run, finished, product_of, require_content
from tasks.system.target import ensure_target, target_folder
from tasks.windows import delete_used_up, finished_training

MODULE = "tasks.eagle3.train"
CURVE_NAME, CURVE_PICTURE_NAME = "curve.csv", "curve.png"


def place(run: Run, states: Product, drafter: Product, window: Window, previous: Product | None) -> Stage:
    """The training of a window, which goes on from that of the window before."""
    return training_stage(run, states, drafter, previous)


def trained(run: Run, states: Product, drafter: Product, window: Window, previous: Product | None) -> Manifest | None:
    """The manifest of the training, if it need not be made; a kill may have kept it from deleting what it used up."""
    stage = training_stage(run, states, drafter, previous)
    if window.is_whole:
        return finished(run, stage)
    responses = product_of(responses_stage(run))
    if (manifest := finished_training(run, responses, drafter, window, stage)) is not None:
        delete_used_up(run, responses, drafter)
    return manifest


def need_bytes(run: Run, states: Product, drafter: Product, window: Window, previous: Product | None) -> int:
    """Checkpoints, and exports or what is handed over, which takes less than the checkpoint that a save adds."""
    return training_bytes(run.recipe, model_facts(run.recipe, target_folder(run)))


@stage_task(
    "training",
    place=place,
    made=trained,
    need_bytes=need_bytes,
    retries=2,
    retry_seconds=60,
    timeout_hours=48,
)
def training(run: Run, states: Product, drafter: Product, window: Window, previous: Product | None) -> Product:
    """Train in a child of the engine environment, from its newest checkpoint if there is one.

    With windows, what the training has used up is deleted: the states, and what the window before handed over.
    """
    stage = training_stage(run, states, drafter, previous)
    if previous is not None:
        require_content(previous)
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
        training=replace(recipe.training, environment={}),  # specs are files: it goes by the environment
        windowed=_windowed(run, window, previous),
    )
    environment, stall_seconds = recipe.training.environment, recipe.training.stall_timeout_seconds
    # The steps that are reported are those of all windows.
    tokens = states.facts["tokens"] if window.is_whole else counted_tokens(product_of(responses_stage(run)).facts).total
    with (
        artifacts.progress_artifact("training") as publish,
        timings.metered(run, "training", publish, tokens * recipe.training.epochs) as on_progress,
    ):
        result = run_in_engine(
            run.engine_python, MODULE, spec, TrainingResult, run.log_folder, on_progress, environment, stall_seconds,
            wind_down_at_seconds=run.deadline.of_stages.save_at_seconds,
            grace_seconds=run.deadline.of_stages.grace_seconds,
        )  # fmt: skip
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
    if not window.is_whole:
        freed_bytes = delete_used_up(run, product_of(responses_stage(run)), drafter)
        get_run_logger().info("deleted what is used up: %s", decimal_bytes(freed_bytes))
    return product_of(stage, manifest)


def _windowed(run: Run, window: Window, previous: Product | None) -> WindowedTraining | None:
    if window.is_whole:
        return None
    return WindowedTraining(
        window=window,
        responses_path=responses_stage(run).folder / RESPONSES_NAME,
        longest_tokens=run.recipe.target.window_tokens,
        previous_folder=None if previous is None else previous.folder,
        steps_before=0 if previous is None else previous.facts["steps"],
    )
