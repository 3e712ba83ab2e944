"""The evaluation task: the target served without a drafter, with the base and with the trained one."""

import shutil
from dataclasses import asdict

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.drafter import fetch_from_hub
from tasks.policies import stage_task
from tasks.stages import evaluation_stage, prompts_path
from tasks.system.acceptance import ARM_NAMES, measure_arms
from tasks.system.manifest import write_manifest
from tasks.system.plan.needs import REPORT_BYTES
from tasks.system.prompts import load_prompts
from tasks.system.report import PICTURE_NAME, build_report, markdown_report, table_rows, write_report
from tasks.system.run import Product, Run, product_of, require_content
from tasks.system.target import ensure_target
from tasks.system.verdict import judge


@stage_task(
    "evaluation",
    place=evaluation_stage,
    need_bytes=lambda run, trained: REPORT_BYTES,
    retries=2,
    retry_seconds=60,
    timeout_hours=12,
)
def evaluation(run: Run, trained: Product) -> Product:
    """Measure three arms on the held-out prompts, judge, and write the report."""
    stage, logger = evaluation_stage(run, trained), get_run_logger()
    require_content(trained)
    target = ensure_target(run, fetch_from_hub)
    prompts = load_prompts(run.recipe.prompts, prompts_path(run)).evaluation
    folders = (None, trained.folder / "base", trained.folder / "best")
    drafters = dict(zip(ARM_NAMES, folders, strict=True))
    with artifacts.progress_artifact("evaluation") as on_progress:
        kept_in = stage.folder / "arms"
        arms = measure_arms(run, target, drafters, prompts, kept_in, logger.info, on_progress)
    verdict = judge(arms[1].histograms, arms[2].histograms, run.recipe.evaluation)
    report = build_report(arms, verdict, run.recipe.evaluation, len(prompts), trained.folder / "best")
    files = write_report(stage.folder, report, arms)
    artifacts.table("verdict", table_rows(report), verdict.sentence(run.recipe.evaluation.confidence))
    artifacts.markdown("report", markdown_report(report), [stage.folder / PICTURE_NAME], "The verdict")
    logger.info(report.last_line())
    manifest = write_manifest(stage, files, asdict(report))
    shutil.rmtree(kept_in)
    return product_of(stage, manifest)
