"""The evaluation task: the target served without a drafter, with the base and with the trained one."""

from dataclasses import asdict

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.policies import stage_task
from tasks.recipe import to_json
from tasks.stages import evaluation_stage, prompts_path
from tasks.system.acceptance import measure_arm
from tasks.system.files import write_atomically
from tasks.system.manifest import write_manifest
from tasks.system.plan import REPORT_BYTES
from tasks.system.plots import plot_acceptance
from tasks.system.prompts import load_prompts
from tasks.system.report import build_report, markdown_report, table_rows
from tasks.system.run import Product, Run, product_of
from tasks.system.target import target_folder
from tasks.system.verdict import judge

REPORT_NAME, REPORT_TEXT_NAME, PICTURE_NAME = "report.json", "report.md", "acceptance.png"


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
    if (manifest := stage.manifest()) is not None:
        return product_of(stage, manifest)
    prompts = load_prompts(run.recipe.prompts, prompts_path(run)).evaluation
    drafters = {"none": None, "base": trained.folder / "base", "trained": trained.folder / "best"}
    arms = []
    with artifacts.progress_artifact("evaluation") as on_progress:
        for name, folder in drafters.items():
            say = lambda phase, name=name: logger.info("serving with %s: %s", name, phase)  # noqa: E731
            arms.append(measure_arm(run, name, target_folder(run), folder, prompts, say, on_progress))
    verdict = judge(arms[1].histograms, arms[2].histograms, run.recipe.evaluation.confidence)
    report = build_report(arms, verdict, run.recipe.evaluation, len(prompts), trained.folder / "best")
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(stage.folder / REPORT_NAME, to_json(report))
    write_atomically(stage.folder / REPORT_TEXT_NAME, markdown_report(report))
    plot_acceptance(arms[1:], stage.folder / PICTURE_NAME)
    artifacts.table("verdict", table_rows(report), verdict.sentence(run.recipe.evaluation.confidence))
    artifacts.markdown("report", markdown_report(report), [stage.folder / PICTURE_NAME], "The verdict")
    logger.info(report.last_line())
    return product_of(stage, write_manifest(stage, [REPORT_NAME, REPORT_TEXT_NAME, PICTURE_NAME], asdict(report)))
