"""The preflight task: everything that can be refused is refused here, before it costs anything."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.stages import drafter_stage, prompts_path, responses_stage
from tasks.system.plan import check_site, describe_prompts, make_plan
from tasks.system.prompts import load_prompts
from tasks.system.run import Run, finished, note_use
from tasks.system.target import target_folder, target_is_ready, target_stage


# It only looks, so there is nothing to cache; and what it refuses, a retry would refuse again.
@task(name="preflight", task_run_name="preflight", cache_policy=NO_CACHE, retries=0, timeout_seconds=600)
def preflight(run: Run) -> None:
    """Check prompts, engine, target, port and disk, and publish the plan."""
    logger = get_run_logger()
    prompts = load_prompts(run.recipe.prompts, prompts_path(run))
    logger.info(describe_prompts(prompts))
    unfinished = {"extraction", "training", "evaluation"}
    serving = finished(run, responses_stage(run)) is None
    check_site(run, serving)
    note_use(run, target_stage(run))
    unfinished |= {"inference"} if serving else set()
    unfinished |= {"target"} if not target_is_ready(run) else set()
    unfinished |= {"drafter-download"} if finished(run, drafter_stage(run)) is None else set()
    plan = make_plan(run, target_folder(run), unfinished)
    artifacts.table("plan", plan.rows(), f"What {run.recipe.name} is going to write under {run.data_root}")
