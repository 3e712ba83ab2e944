"""A flow in which secrets are at work: downloads, a server that wants a key, and an error that tells both."""

import os
from pathlib import Path

from prefect import flow

from flows.deadline import AskedDeadline
from flows.recipes import Overrides, RecipeName, RefreshName
from flows.site import open_run, run_name
from tasks.drafter import drafter_download
from tasks.policies import both
from tasks.server import open_server
from tasks.system.manifest import write_manifest
from tasks.system.run import Product, Run, product_of
from tasks.system.vllm_server import stop_server
from tests.flows.tiny_flow import report_facts, tiny_place, tiny_stage

TELLS_VARIABLE = "SECRET_FLOW_TELLS"
PROCESSES_NAME = "processes.txt"


def made(run: Run, name: str, text: str) -> Product:
    stage = tiny_place(run, name)
    stage.folder.mkdir(parents=True, exist_ok=True)
    (stage.folder / "file").write_text(text)
    return product_of(stage, write_manifest(stage, ["file"], {}))


@tiny_stage("server-load")
def server_load(run: Run) -> Product:
    """The weights from the hub, a server that has answered, and what everybody can see of the processes meanwhile."""
    endpoint = open_server(run, 0)
    try:
        commands = [path.read_bytes().replace(b"\0", b" ") for path in Path("/proc").glob("[0-9]*/cmdline")]
        (run.data_root / PROCESSES_NAME).write_bytes(b"\n".join(commands))
        return made(run, "server-load", repr(endpoint))
    finally:
        stop_server(endpoint)


@tiny_stage("inference")
def inference(run: Run, server: Product) -> Product:
    if TELLS_VARIABLE in os.environ:
        key = run.recipe.server.engine.environment["VLLM_API_KEY"]
        raise LookupError(f"somebody else's error, with {key} and {os.environ['HF_TOKEN']}")
    return made(run, "inference", "answers")


@flow(name="hero-run", flow_run_name=run_name)
def hero_run(
    recipe: RecipeName = "smollm2-cpu",
    overrides: Overrides | None = None,  # type: ignore[valid-type]
    refresh: list[RefreshName] | None = None,
    deadline: AskedDeadline | None = None,
) -> Product:
    with open_run(recipe, overrides, refresh or [], deadline) as run:
        server, drafter = both(server_load.submit(run), drafter_download.submit(run))
        answers = inference(run, server)
        return Product(folder=answers.folder, content_sha256="", facts=report_facts(drafter.folder))
