"""The server-load and server-stop tasks: the vLLM server that answers the prompts."""

from pathlib import Path

from prefect.logging import get_run_logger

from tasks.drafter import fetch_from_hub
from tasks.errors import PermanentError
from tasks.policies import stage_task
from tasks.stages import responses_stage
from tasks.system.manifest import Manifest, Stage
from tasks.system.plan import model_facts
from tasks.system.processes import live_child
from tasks.system.run import Product, Run
from tasks.system.target import ensure_target, target_folder, target_is_ready
from tasks.system.vllm_server import Endpoint, lists_model, start_server, stop_server

NOT_NEEDED = Endpoint(base_url="", model="", guard_pid=0, log_path=Path())
"""What inference gets when it has nothing to ask."""


def weights_need_bytes(run: Run) -> int:
    """The target's weights, if they are made here; what is fetched asks for its exact need when it is listed."""
    made_here = run.recipe.target.source.kind == "package-gguf" and not target_is_ready(run)
    return model_facts(run.recipe, target_folder(run)).weights_bytes if made_here else 0


def stopping_place(run: Run, server: Endpoint, responses: Product) -> Stage:
    """A server has been stopped when the answers that it was started for are complete."""
    return responses_stage(run)


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
    """Fetch or make the target, start vLLM on it, and wait until it has answered a request."""
    logger = get_run_logger()
    folder = ensure_target(run, fetch_from_hub)
    server, log_path = run.recipe.server, run.log_folder / "server.log"
    logger.info("starting vLLM on %s; its log is %s", folder, log_path)
    return start_server(
        run.engine_python,
        folder,
        run.recipe.target,
        server,
        server.engine,
        log_path,
        lambda phase: logger.info("server: %s", phase),
    )


def stopped(run: Run, server: Endpoint, responses: Product) -> Manifest | None:
    """The manifest of the answers, once nothing of a server that we started is left."""
    return None if live_child(server.guard_pid) else responses_stage(run).manifest()


@stage_task(
    "server-stop",
    place=stopping_place,
    made=stopped,
    record=lambda stage, manifest: "none was running",
    need_bytes=lambda run, server, responses: 0,
    retries=1,
    retry_seconds=5,
    timeout_hours=0.1,
)
def server_stop(run: Run, server: Endpoint, responses: Product) -> str:
    """End the server and prove that nothing of it is left."""
    found = stop_server(server.guard_pid)
    if server != NOT_NEEDED and lists_model(server):
        raise PermanentError(
            f"a server still answers at {server.base_url} after ours was stopped: it is not ours. "
            "Stop it by hand, or give the recipe another port (--set server.port=0)."
        )
    said = "stopped: every process of its group has ended and its port is closed" if found else "none was running"
    get_run_logger().info("server %s", said)
    return said
