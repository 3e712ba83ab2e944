"""The inference task: every prompt answered by the server, with exact token ids."""

from dataclasses import asdict

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.policies import stage_task
from tasks.stages import answers_stage, prompts_path, responses_stage
from tasks.system.answering import DATA_CARD_NAME, answer_prompts, finish_set
from tasks.system.manifest import Stage, write_manifest
from tasks.system.plan import answers_need_bytes
from tasks.system.prompts import load_prompts
from tasks.system.responses import RESPONSES_NAME
from tasks.system.run import Product, Run, product_of
from tasks.system.vllm_server import Endpoint

JOURNAL_NAME = "journal.jsonl"


def place(run: Run, server: Endpoint) -> Stage:
    """The set of answers does not depend on which server gave them."""
    return responses_stage(run)


def need_bytes(run: Run, server: Endpoint) -> int:
    """Journal and set, from the expected lengths."""
    return answers_need_bytes(run.recipe)


@stage_task("inference", place=place, need_bytes=need_bytes, retries=2, retry_seconds=30, timeout_hours=48)
def inference(run: Run, server: Endpoint) -> Product:
    """Ask what the journal lacks, then write the finished set."""
    stage = responses_stage(run)
    prompts = load_prompts(run.recipe.prompts, prompts_path(run))
    journal_path = answers_stage(run).folder / JOURNAL_NAME
    with artifacts.progress_artifact("inference") as on_progress:
        tally = answer_prompts(prompts, server, run.recipe.inference, journal_path, on_progress)
    facts = finish_set(prompts, journal_path, stage.folder, tally)
    get_run_logger().info("answered: %s", facts)
    artifacts.markdown("data-card", (stage.folder / DATA_CARD_NAME).read_text(), [], "The answers")
    return product_of(stage, write_manifest(stage, [RESPONSES_NAME, DATA_CARD_NAME], asdict(facts)))
