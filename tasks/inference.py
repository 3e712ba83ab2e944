"""The inference task: every prompt answered by the server, with exact token ids."""

from dataclasses import asdict

from prefect.logging import get_run_logger

from tasks import artifacts
from tasks.errors import DeadlineReached, ServerGone
from tasks.planning import run_tokens
from tasks.policies import note_fault, stage_task
from tasks.server import reopen_server
from tasks.stages import answers_journal, prompts_path, responses_stage
from tasks.system import ledger
from tasks.system.answering import DATA_CARD_NAME, answer_prompts, finish_set
from tasks.system.disk import reserve_bytes
from tasks.system.journal import Journal
from tasks.system.manifest import Stage, write_manifest
from tasks.system.plan.needs import answers_bytes
from tasks.system.prompts import load_prompts
from tasks.system.responses import RESPONSES_NAME
from tasks.system.restarts import Restarts
from tasks.system.run import Product, Run, product_of
from tasks.system.vllm_server import Endpoint


def place(run: Run, server: Endpoint) -> Stage:
    """The set of answers does not depend on which server gave them."""
    return responses_stage(run)


def need_bytes(run: Run, server: Endpoint) -> int:
    """Journal and set, from the expected lengths."""
    return answers_bytes(run_tokens(run).total)


@stage_task("inference", place=place, need_bytes=need_bytes, retries=2, retry_seconds=30, timeout_hours=48)
def inference(run: Run, server: Endpoint) -> Product:
    """Ask what the journal lacks, restarting a server that dies, then write the finished set.

    A deadline ends the asking, and then either the run, or the set with what it has.
    """
    stage, recipe, logger = responses_stage(run), run.recipe, get_run_logger()
    prompts = load_prompts(recipe.prompts, prompts_path(run))

    def on_death(error: ServerGone) -> None:
        note_fault(run, "inference", error)
        logger.warning("%s What is missing is asked again.", error)

    def reopen(gone: Endpoint) -> Endpoint:
        if run.deadline.is_winding_down:
            raise DeadlineReached("there is no time to start the server again.")
        return reopen_server(run, gone)

    restarts = Restarts(most=recipe.server.restarts, reopen=reopen, on_death=on_death)
    reserve = reserve_bytes(run.data_root, recipe.reserve_share)
    with artifacts.progress_artifact("inference") as on_progress, Journal(answers_journal(run), reserve) as journal:
        tally = answer_prompts(
            prompts, server, recipe.inference, recipe.server, journal, restarts, on_progress, run.deadline.asking
        )
    for kind, count in tally.retries.items():
        ledger.note(run.log_folder, ledger.Fault("inference", f"request: {kind}", kind, "asked again", count))
    if tally.unasked and run.deadline.then == "stop":
        done_share = 1 - tally.unasked / (len(prompts.validation) + len(prompts.training))
        raise DeadlineReached(f"inference {100 * done_share:.0f} %")
    facts = finish_set(prompts, answers_journal(run), stage.folder, tally)
    logger.info("answered: %s", facts)
    files = [RESPONSES_NAME, DATA_CARD_NAME]
    artifacts.markdown("data-card", (stage.folder / DATA_CARD_NAME).read_text(), [], "The answers")
    return product_of(stage, write_manifest(stage, files, asdict(facts), bookkeeping=(DATA_CARD_NAME,)))
