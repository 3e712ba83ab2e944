"""A flow with the parts of the hero run (open_run, stage_task, children under guards) and stages that only sleep."""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from prefect import flow

from flows.deadline import AskedDeadline
from flows.recipes import Overrides, RecipeName, RefreshName
from flows.run_deadline import ended_at_deadline
from flows.site import open_run, run_name
from tasks import artifacts
from tasks.errors import ChildDied, DeadlineReached, ServerGone
from tasks.policies import both, stage_task
from tasks.system.engine_child import Progress
from tasks.system.manifest import Stage, place, write_manifest
from tasks.system.processes import Child, Limits, wait_for_exit
from tasks.system.report import Report
from tasks.system.run import Product, Run, product_of
from tasks.system.verdict import Verdict

SECONDS_VARIABLE = "TINY_STAGE_SECONDS"
FAILS_VARIABLE = "TINY_FAILS_ONCE"


def tiny_place(run: Run, name: str) -> Stage:
    return place(run.data_root, "tiny", name, 1)


def sleep_in_child(run: Run, name: str) -> Product:
    """What a stage does: a child that works for a while, its progress, products, and the manifest."""
    stage = tiny_place(run, name)
    stage.folder.mkdir(parents=True, exist_ok=True)
    fail_once(run, name)
    seconds = float(os.environ.get(SECONDS_VARIABLE, "1"))
    (run.data_root / f"{name}.begun").write_text(str(os.getpid()))
    child = Child([sys.executable, "-c", f"import time; time.sleep({seconds})"], run.log_folder / f"{name}.log", {}, 2)
    began = time.monotonic()
    with artifacts.progress_artifact(name) as on_progress:

        def progressed() -> bool:
            on_progress(Progress("sleeping", time.monotonic() - began, seconds, "s", {}))
            return True

        ended = wait_for_exit(child, Limits(stall_seconds=600, total_seconds=600), progressed)
    if ended.code:
        raise ChildDied(f"the sleeper ended with exit code {ended.code}.")
    (stage.folder / "slept.txt").write_text(str(seconds))
    return product_of(stage, write_manifest(stage, ["slept.txt"], {"data_root": str(run.data_root)}))


def fail_once(run: Run, name: str) -> None:
    mark = run.data_root / f"{name}.failed"
    if os.environ.get(FAILS_VARIABLE) == name and not mark.exists():
        mark.touch()
        raise ServerGone("the server stopped answering.")


def tiny_stage(name: str):
    return stage_task(
        name,
        place=lambda run, *positional, **named: tiny_place(run, name),
        need_bytes=lambda run, *upstream: 0,
        retries=1,
        retry_seconds=1,
        timeout_hours=1,
    )


@tiny_stage("server-load")
def server_load(run: Run) -> Product:
    return sleep_in_child(run, "server-load")


@tiny_stage("drafter-download")
def drafter_download(run: Run) -> Product:
    return sleep_in_child(run, "drafter-download")


@tiny_stage("inference")
def inference(run: Run, server: Product) -> Product:
    return sleep_in_child(run, "inference")


@tiny_stage("training")
def training(run: Run, responses: Product) -> Product:
    return sleep_in_child(run, "training")


@flow(name="hero-run", flow_run_name=run_name)
def hero_run(
    recipe: RecipeName = "smollm2-cpu",
    overrides: Overrides | None = None,  # type: ignore[valid-type]
    refresh: list[RefreshName] | None = None,
    deadline: AskedDeadline | None = None,
) -> Product | str:
    try:
        with open_run(recipe, overrides, refresh or [], deadline) as run:
            server, _ = both(server_load.submit(run), drafter_download.submit(run))
            trained = training(run, inference(run, server))
            facts = report_facts(trained.folder)
            return Product(folder=trained.folder, content_sha256=trained.content_sha256, facts=facts)
    except DeadlineReached as reached:
        return ended_at_deadline(reached)


def report_facts(drafter: Path) -> dict:
    """What the command line prints at the end."""
    figures = dict.fromkeys(("acceptance_length", "acceptance_length_low", "acceptance_length_high"), 1.5)
    figures |= {"tokens_per_second": 1.0, "speed_up": 1.0, "differing_answers_share": 0.0}
    arms = [{"name": name, "acceptance_by_position": [0.5], **figures} for name in ("none", "base", "trained")]
    verdict = Verdict("cannot-tell", 0.0, 0.0, 0.0, 1)
    return asdict(
        Report(verdict=verdict, speed_sentence="", arms=arms, settings={"confidence": 0.95}, drafter=str(drafter))
    )
