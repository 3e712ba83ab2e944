"""A vLLM OpenAI server as a child process: started, awaited until it has answered, measured, stopped."""

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tasks.errors import BadInput, ChildDied, EngineRejected, PermanentError, TransientError
from tasks.recipe import Engine, Server, Target
from tasks.redaction import redacted
from tasks.system.api_keys import API_KEY_VARIABLE, api_key, key_header, use_key_of
from tasks.system.processes import Child, log_tail, raise_if_stopping

POLL_SECONDS = 0.5
SERVED_MODEL_NAME = "target"
ENTRY_POINT = "vllm.entrypoints.openai.api_server"

# Our own limit is the one that counts, so the engine's is set above it.
ENGINE_LIMITS = {"VLLM_ENGINE_READY_TIMEOUT_S": "86400"}

# The last cause in a log is the root of a traceback chain that vLLM prints through several processes.
CAUSE_PATTERN = re.compile(r"(?:[A-Za-z_.]*(?:Error|Exception)): .+")
# vLLM's closing remarks, which name no cause.
NO_CAUSE = ("Engine core initialization failed", "WorkerProc initialization failed", "See root cause above")
PERMANENT_CAUSES = ("ValueError", "TypeError", "KeyError", "OSError", "NotImplementedError", "ValidationError")
PHASES = (
    (re.compile(r"Loading safetensors checkpoint shards:.*\| (\d+)/(\d+)"), "loading shard {} of {}"),
    (re.compile(r"Starting to load model"), "loading the model"),
    (re.compile(r"Loading weights took"), "weights loaded"),
    (re.compile(r"KV cache"), "sizing the KV cache"),
    (re.compile(r"Compiling a graph|torch\.compile takes"), "compiling"),
    (re.compile(r"Starting vLLM server"), "opening the port"),
)


@dataclass(frozen=True)
class Endpoint:
    """A server that answers: where, as what, with which log."""

    base_url: str
    model: str
    log_path: Path
    """Of a server that is ours."""
    is_ours: bool = True
    """Started by us, and so stopped by us."""

    @property
    def log_hint(self) -> str:
        """Where to read on, for messages."""
        return f"Server log: {self.log_path}." if self.is_ours else "It is not ours: its log is its owner's."


_started: dict[str, Child] = {}
"""Servers that this process has started, by address."""


def take_port(host: str, port: int) -> int:
    """The port to listen on: a free one for 0.

    Raises:
        BadInput: The port is taken; the message says so before anything is started.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"the vLLM server needs port {port} on {host}, but it cannot be taken: {error.strerror}. "
                "Stop what listens there, or set another port (--set server.port=N; 0 takes a free one)."
            ) from error
        return probe.getsockname()[1]


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen here now."""
    try:
        take_port(host, port)
    except BadInput:
        return False
    return True


def server_command(
    python: Path, model_folder: Path, target: Target, host: str, port: int, arguments: Sequence[str]
) -> list[str]:
    """The command line of a server for this target."""
    command = [str(python), "-m", ENTRY_POINT, "--model", str(model_folder), "--served-model-name", SERVED_MODEL_NAME]
    command += ["--host", host, "--port", str(port), "--dtype", target.dtype]
    command += ["--max-model-len", str(target.window_tokens)]
    return command + (["--trust-remote-code"] if target.trust_remote_code else []) + list(arguments)


def start_server(
    python: Path,
    model_folder: Path,
    target: Target,
    server: Server,
    engine: Engine,
    log_path: Path,
    on_phase: Callable[[str], None],
) -> Endpoint:
    """Start a server and wait until it has answered one short request.

    Args:
        python: The engine environment's interpreter.
        model_folder: Checkpoint of the target.
        target: Its type and window.
        server: Address and limits.
        engine: Arguments and environment.
        log_path: The server's log; begun anew.
        on_phase: Told what the server is doing whenever that changes.

    Raises:
        BadInput: The port is taken.
        EngineRejected: vLLM refused the model or an argument; vLLM's reason is in the message.
        ChildDied: It ended for another reason, stalled, or took too long.
    """
    port = take_port(server.host, server.port)
    command = server_command(python, model_folder, target, server.host, port, engine.arguments)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    child = Child(command, log_path, {**ENGINE_LIMITS, **engine.environment}, server.stop_grace_seconds)
    endpoint = Endpoint(f"http://{server.host}:{port}", SERVED_MODEL_NAME, log_path)
    _started[endpoint.base_url] = child
    use_key_of(engine.environment, endpoint.base_url)
    try:
        _wait_until_listening(endpoint, child, server, on_phase)
        on_phase("answering the first request")
        # The first request after a cold start can take many times as long as later ones.
        ask_once(endpoint, server.load_timeout_seconds)
    except BaseException:
        stop_server(endpoint)
        raise
    on_phase("ready")
    return endpoint


def _wait_until_listening(endpoint: Endpoint, child: Child, server: Server, on_phase: Callable[[str], None]) -> None:
    started = last_growth = time.monotonic()
    size_bytes, phase = 0, ""
    while not lists_model(endpoint):
        raise_if_stopping()
        if (ended := child.exit) is not None:
            raise start_failure(ended.code, endpoint.log_path)
        now = time.monotonic()
        if (grown := endpoint.log_path.stat().st_size) != size_bytes:
            size_bytes, last_growth = grown, now
            if (current := current_phase(log_tail(endpoint.log_path, 200))) not in ("", phase):
                phase = current
                on_phase(phase)
        if now - started > server.load_timeout_seconds or now - last_growth > server.stall_timeout_seconds:
            raise ChildDied(
                f"the vLLM server was not ready after {now - started:.0f} s, its log quiet for "
                f"{now - last_growth:.0f} s, in phase {phase!r} (limits: {server.load_timeout_seconds:.0f} s in all, "
                f"{server.stall_timeout_seconds:.0f} s quiet). Log {endpoint.log_path} ends:\n"
                f"{log_tail(endpoint.log_path)}"
            )
        time.sleep(POLL_SECONDS)


def current_phase(log_text: str) -> str:
    """What the server was doing when it wrote the end of this log; empty when nothing is recognised."""
    for line in reversed(re.split(r"[\r\n]+", log_text)):
        for pattern, phrase in PHASES:
            if match := pattern.search(line):
                return phrase.format(*match.groups())
    return ""


def start_failure(exit_code: int, log_path: Path) -> PermanentError | TransientError:
    """The error for a server that ended before it was ready: vLLM's own cause in one line, then the log's end."""
    cause = last_cause(log_path)
    message = (
        f"the vLLM server ended with exit code {exit_code} before it was ready: {cause}\n"
        f"Log {log_path} ends:\n{log_tail(log_path)}"
    )
    permanent = cause.split(":")[0].rpartition(".")[2] in PERMANENT_CAUSES or "error: " in log_tail(log_path, 3)
    return EngineRejected(message) if permanent else ChildDied(message)


def last_cause(log_path: Path) -> str:
    """The last error in a server's log that names a cause."""
    causes = CAUSE_PATTERN.findall(log_tail(log_path, 400, 200_000))
    causes = [cause for cause in causes if not any(phrase in cause for phrase in NO_CAUSE)]
    return causes[-1] if causes else "no cause in its log"


def lists_model(endpoint: Endpoint) -> bool:
    """Whether ``/v1/models`` answers with the expected model."""
    return any(model["id"] == endpoint.model for model in listed_models(endpoint.base_url))


def listed_models(base_url: str) -> list[dict[str, Any]]:
    """What ``/v1/models`` lists; nothing while no server answers.

    Raises:
        BadInput: The server asks for another API key.
    """
    try:
        return json.loads(_get(base_url, "/v1/models"))["data"]
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise BadInput(
                f"the server at {base_url} does not take {'the' if api_key(base_url) else 'requests without an'} API "
                f"key (HTTP {error.code}). Set {API_KEY_VARIABLE} in the environment of the vLLM engine block, or in "
                "the run's own."
            ) from error
        return []
    except (OSError, ValueError, KeyError):
        return []


def ask_once(endpoint: Endpoint, timeout_seconds: float) -> None:
    """One short chat request, answered in full.

    Raises:
        EngineRejected: The server answers with an error.
        ChildDied: It does not answer.
    """
    try:
        say_hello(endpoint, timeout_seconds)
    except urllib.error.HTTPError as error:
        raise EngineRejected(
            f"the vLLM server at {endpoint.base_url} lists its model but answers a short request with HTTP "
            f"{error.code}: {refusal_text(error)}. Log: {endpoint.log_path}."
        ) from error
    except OSError as error:
        raise ChildDied(
            f"the vLLM server at {endpoint.base_url} lists its model but does not answer a short request: {error}. "
            f"Log {endpoint.log_path} ends:\n{log_tail(endpoint.log_path)}"
        ) from error


def refusal_text(error: urllib.error.HTTPError) -> str:
    """What a server said with its refusal, without secrets: it may repeat what it was sent."""
    return redacted(error.read().decode(errors="replace"))[:500]


def say_hello(endpoint: Endpoint, timeout_seconds: float) -> dict[str, Any]:
    """The reply to a short chat request, with token ids if the server gives them.

    Raises:
        OSError: There is none; an ``HTTPError`` if the server refuses the request.
    """
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    data = json.dumps({**body, "return_token_ids": True}).encode()
    url = f"{endpoint.base_url}/v1/chat/completions"
    headers = {"content-type": "application/json", **key_header(endpoint.base_url)}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=timeout_seconds) as reply:
        return json.load(reply)


def is_healthy(endpoint: Endpoint) -> bool:
    """Whether ``/health`` answers with success, which vLLM's does not once its engine is dead."""
    try:
        _get(endpoint.base_url, "/health")
    except OSError:
        return False
    return True


def is_alive(endpoint: Endpoint) -> bool:
    """Whether a server of ours still has a process; of somebody else's we only know what it answers."""
    if not endpoint.is_ours:
        return True
    child = child_of(endpoint)
    return child is not None and child.exit is None


def child_of(endpoint: Endpoint) -> Child | None:
    """The guarded process of a server that this process has started and not yet stopped."""
    return _started.get(endpoint.base_url)


def end_of(endpoint: Endpoint) -> str:
    """How a server of ours ended, with its own cause if it named one."""
    child = child_of(endpoint)
    if child is None or child.exit is None:
        return "it was not started by this process."
    return f"exit code {child.exit.code}, {last_cause(endpoint.log_path)}. {endpoint.log_hint}"


def stop_server(endpoint: Endpoint) -> bool:
    """Stop a server that this process started; returns once nothing of it is left.

    Returns:
        Whether there was one to stop.
    """
    child = _started.pop(endpoint.base_url, None)
    if child is None or child.exit is not None:
        return False
    child.stop()
    return True


def counters(base_url: str, prefix: str) -> Mapping[str, float]:
    """Prometheus counters of a server, summed over engines.

    Args:
        base_url: The server.
        prefix: Names to keep, such as ``vllm:spec_decode``.

    Returns:
        Sample name to value; samples by draft position are named ``<name>[<position>]``.
    """
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(_get(base_url, "/metrics")):
        for sample in family.samples:
            if sample.name.startswith(prefix) and sample.name.endswith("_total"):
                position = sample.labels.get("position")
                name = sample.name if position is None else f"{sample.name}[{position}]"
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums


def _get(base_url: str, path: str) -> str:
    request = urllib.request.Request(base_url + path, headers=key_header(base_url))
    with urllib.request.urlopen(request, timeout=10) as reply:
        return reply.read().decode()


def speculative_arguments(drafter_folder: Path, draft_tokens: int) -> list[str]:
    """Arguments that make a server draft with an EAGLE-3 checkpoint and count what is accepted."""
    config: dict[str, Any] = {
        "method": "eagle3",
        "model": str(drafter_folder),
        "num_speculative_tokens": draft_tokens,
    }
    return ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "summary"]
