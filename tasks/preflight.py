"""The preflight task: everything that can be refused is refused here, before it costs anything."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks import plan_artifacts
from tasks.errors import NotEnoughDisk
from tasks.planning import deadline_outlook, plan_run
from tasks.stages import prompts_path, responses_stage
from tasks.system.plan.memory import advice, plan_memory
from tasks.system.plan.model import model_facts, snapshot_differences
from tasks.system.plan.refusal import refusal
from tasks.system.plan.whole import Plan
from tasks.system.prompts import load_prompts
from tasks.system.run import Run, finished, note_use
from tasks.system.site_checks import check_site, describe_prompts
from tasks.system.target import target_folder, target_stage


# It only looks, so there is nothing to cache; and what it refuses, a retry would refuse again.
@task(name="preflight", task_run_name="preflight", cache_policy=NO_CACHE, retries=0, timeout_seconds=600)
def preflight(run: Run) -> None:
    """Check prompts, engine, target, port and disk, and publish the plan."""
    logger = get_run_logger()
    prompts = load_prompts(run.recipe.prompts, prompts_path(run))
    logger.info(describe_prompts(prompts))
    serving = finished(run, responses_stage(run)) is None
    check_site(run, serving)
    note_use(run, target_stage(run))
    plan = plan_run(run)
    plan_artifacts.publish_first(run, plan)
    if reason := refusal(plan, run.recipe):
        raise NotEnoughDisk(reason)
    plan_artifacts.keep_first(run, plan)
    logger.info("states: %s", plan.choice.reason)
    if outlook := deadline_outlook(run, plan):
        logger.info(outlook)
    for warning in _warnings(run, plan, serving):
        logger.warning(warning)


def _warnings(run: Run, plan: Plan, serving: bool) -> list[str]:
    """What does not stop the run and should be known before it: a wrong snapshot, requests that will only queue."""
    folder = target_folder(run)
    facts = model_facts(run.recipe, folder)
    memory = plan_memory(run.recipe, facts, plan.tokens) if serving and not run.recipe.server.endpoint else None
    return snapshot_differences(run.recipe, folder) + (advice(memory) if memory else [])
