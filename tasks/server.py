"""The server-load and server-stop tasks: the vLLM server that answers the prompts."""

import dataclasses
import urllib.parse
from pathlib import Path

from prefect.logging import get_run_logger

from tasks.drafter import fetch_from_hub
from tasks.errors import PermanentError
from tasks.policies import stage_task
from tasks.stages import answers_journal, prompts_path, responses_stage
from tasks.system import timings
from tasks.system.answering import unanswered
from tasks.system.foreign_server import find_server, take_over
from tasks.system.journal import answered_ids
from tasks.system.manifest import Manifest, Stage
from tasks.system.plan.model import model_facts, snapshot_differences
from tasks.system.prompts import load_prompts
from tasks.system.run import Product, Run
from tasks.system.target import ensure_target, target_folder, target_is_ready
from tasks.system.vllm_server import Endpoint, is_alive, lists_model, start_server, stop_server

NOT_NEEDED = Endpoint(base_url="", model="", log_path=Path())
"""What inference gets when it has nothing to ask."""


def weights_need_bytes(run: Run) -> int:
    """The target's weights, if they are made here; what is fetched asks for its exact need when it is listed."""
    made_here = run.recipe.target.source.kind == "package-gguf" and not target_is_ready(run)
    return model_facts(run.recipe, target_folder(run)).weights_bytes if made_here else 0


# Need is decided backwards: what the server is for is the answers, so complete answers mean no load.
@stage_task(
    "server-load",
    place=responses_stage,
    need_bytes=weights_need_bytes,
    retries=2,
    retry_seconds=30,
    timeout_hours=8,
    record=lambda stage, manifest: NOT_NEEDED,
)
def server_load(run: Run) -> Endpoint:
    """Provide a server that has answered a request: ours, on a target that is fetched first, or somebody else's."""
    prompts = load_prompts(run.recipe.prompts, prompts_path(run))
    if not unanswered(prompts, answered_ids(answers_journal(run))):
        get_run_logger().info("every prompt is answered already, so no server is loaded")
        return NOT_NEEDED
    if run.deadline.is_winding_down:
        get_run_logger().info("there is no time to ask more prompts, so no server is loaded")
        return NOT_NEEDED
    return open_server(run, run.recipe.server.port)


def open_server(run: Run, port: int) -> Endpoint:
    """Start our server, or find the one that the recipe names."""
    logger, server = get_run_logger(), run.recipe.server
    say = lambda phase: logger.info("server: %s", phase)  # noqa: E731
    if server.endpoint:
        return find_server(server, run.recipe.target.source.name, run.recipe.target.window_tokens, say)
    folder, log_path = ensure_target(run, fetch_from_hub), run.log_folder / "server.log"
    for difference in snapshot_differences(run.recipe, folder):
        logger.warning(difference)
    logger.info("starting vLLM on %s; its log is %s", folder, log_path)
    at_port = dataclasses.replace(server, port=port)
    with timings.timed(run, "server-load", "load"):
        return start_server(run.engine_python, folder, run.recipe.target, at_port, server.engine, log_path, say)


def reopen_server(run: Run, server: Endpoint) -> Endpoint:
    """End what is left of a server and start it again at the same address; somebody else's is awaited."""
    stop_server(server)
    return open_server(run, urllib.parse.urlsplit(server.base_url).port or run.recipe.server.port)


def stopping_place(run: Run, server: Endpoint, responses: Product) -> Stage:
    """A server has been stopped when the answers that it was started for are complete."""
    return responses_stage(run)


def stopped(run: Run, server: Endpoint, responses: Product) -> Manifest | None:
    """The manifest of the answers, once no server is left that we are to stop."""
    ours = server.is_ours and is_alive(server)
    to_take_over = not server.is_ours and run.recipe.server.take_over and lists_model(server)
    return None if ours or to_take_over else responses_stage(run).manifest()


@stage_task(
    "server-stop",
    place=stopping_place,
    made=stopped,
    record=lambda stage, manifest: "none of ours was running",
    need_bytes=lambda run, server, responses: 0,
    retries=1,
    retry_seconds=5,
    timeout_hours=0.1,
    begins_late=True,
)
def server_stop(run: Run, server: Endpoint, responses: Product) -> str:
    """End the server and prove that nothing of it is left."""
    if server.is_ours:
        stop_server(server)
    else:
        take_over(server, run.recipe.server.stop_grace_seconds)
    if lists_model(server):
        raise PermanentError(
            f"a server still answers at {server.base_url} after it was stopped: it is another one. "
            "Stop it by hand, or give the recipe another port (--set server.port=0)."
        )
    said = "stopped: every process of it has ended and its port is closed"
    get_run_logger().info("server %s", said)
    return said
