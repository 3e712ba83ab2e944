"""Somebody else's vLLM server: awaited, checked and used; stopped only when the user said so."""

import time
import urllib.error
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tasks.errors import BadInput, GaveUp, PermanentError
from tasks.recipe import Server
from tasks.system.processes import raise_if_stopping
from tasks.system.vllm_server import Endpoint, listed_models, say_hello

POLL_SECONDS = 1.0
KILL_WAIT_SECONDS = 20.0


def find_server(server: Server, target_name: str, window_tokens: int, on_phase: Callable[[str], None]) -> Endpoint:
    """Wait until the server at ``server.endpoint`` is up, and check that it can do what is asked of it.

    Args:
        server: Its address, the model's id there, and how long it may be loading.
        target_name: The target's folder or repository; its last part must be the served model's, unless the
            recipe names the id.
        window_tokens: Longest prompt plus answer that it must take.
        on_phase: Told what is waited for.

    Raises:
        BadInput: The address is none, another model is served, the window is too short, or the server does not
            give exact token ids.
        GaveUp: It was not up in time.
        Stopped: The run is ending.
    """
    base_url = base_url_of(server.endpoint)
    models = _await_models(base_url, server.load_timeout_seconds, on_phase)
    model = _chosen(models, server.endpoint_model, target_name, base_url)
    window = model.get("max_model_len")
    if window is not None and window < window_tokens:
        raise BadInput(
            f"the server at {base_url} serves {model['id']} with a window of {window} tokens; the recipe needs "
            f"{window_tokens}. Start it with --max-model-len {window_tokens}, or set target.window_tokens={window}."
        )
    endpoint = Endpoint(base_url, model["id"], Path(), is_ours=False)
    on_phase(f"found {model['id']} at {base_url}; asking it once")
    _require_token_ids(endpoint, server.load_timeout_seconds)
    return endpoint


def base_url_of(address: str) -> str:
    """``http://host:port`` of an address that may end in ``/`` or ``/v1``.

    Raises:
        BadInput: It is not an HTTP address.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"server.endpoint must be http://host:port, found {address!r}.")
    return f"{parts.scheme}://{parts.netloc}"


def _await_models(base_url: str, timeout_seconds: float, on_phase: Callable[[str], None]) -> list[dict[str, Any]]:
    # A server that is loading refuses connections: its port opens when it is ready.
    deadline, told = time.monotonic() + timeout_seconds, False
    while not (models := listed_models(base_url)):
        raise_if_stopping()
        if time.monotonic() > deadline:
            raise GaveUp(
                f"no vLLM server answered at {base_url} within {timeout_seconds:.0f} s. Start it, correct "
                "server.endpoint, or leave that empty to have one started (--set server.endpoint=)."
            )
        if not told:
            on_phase(f"waiting for the server at {base_url}, for up to {timeout_seconds:.0f} s")
            told = True
        time.sleep(POLL_SECONDS)
    return models


def _chosen(models: list[dict[str, Any]], wanted_id: str, target_name: str, base_url: str) -> dict[str, Any]:
    served = ", ".join(f"{model['id']} (from {model.get('root', '?')})" for model in models)
    if wanted_id:
        named = [model for model in models if model["id"] == wanted_id]
        if not named:
            raise BadInput(f"the server at {base_url} does not serve {wanted_id!r}; it serves {served}.")
        return named[0]
    short = Path(target_name).name.lower()
    matching = [m for m in models if short in (Path(m["id"]).name.lower(), Path(m.get("root") or "").name.lower())]
    if len(matching) != 1:
        raise BadInput(
            f"the server at {base_url} serves {served}, and the recipe's target is {target_name}: it cannot be told "
            "that this is the same model. If it is, say so with its id: --set server.endpoint_model=ID."
        )
    return matching[0]


def _require_token_ids(endpoint: Endpoint, timeout_seconds: float) -> None:
    reply = _greeted(endpoint, timeout_seconds)
    if not reply.get("prompt_token_ids") or not reply["choices"][0].get("token_ids"):
        raise BadInput(
            f"the server at {endpoint.base_url} answers without token ids (return_token_ids): it is not a vLLM of "
            "0.11 or newer, or something between it and us leaves them out. Name vLLM's own address."
        )


def _greeted(endpoint: Endpoint, timeout_seconds: float) -> dict[str, Any]:
    try:
        return say_hello(endpoint, timeout_seconds)
    except urllib.error.HTTPError as error:
        raise BadInput(
            f"the server at {endpoint.base_url} refuses a short request with HTTP {error.code}: "
            f"{error.read().decode(errors='replace')[:500]}."
        ) from error
    except OSError as error:
        raise BadInput(f"the server at {endpoint.base_url} lists a model but does not answer: {error}.") from error


def take_over(endpoint: Endpoint, grace_seconds: float) -> list[int]:
    """Stop somebody else's server on this machine: the process that listens there, and all below it.

    Returns:
        The ids of the processes that were ended.

    Raises:
        PermanentError: Nothing that may be stopped listens there, or something is left after SIGKILL.
    """
    listener = _listener(endpoint.base_url)
    try:
        processes = [listener, *listener.children(recursive=True)]
        # vLLM ends its own engine and workers when its API process is told to end.
        listener.terminate()
        _, left = psutil.wait_procs(processes, grace_seconds)
        for process in left:
            process.kill()
        _, left = psutil.wait_procs(left, KILL_WAIT_SECONDS)
    except psutil.AccessDenied as error:
        raise PermanentError(
            f"the server at {endpoint.base_url} (process {listener.pid}) belongs to another user and cannot be taken "
            "over. Stop it by hand, then start again: the answers are kept."
        ) from error
    except psutil.NoSuchProcess:
        left = []
    if left:
        pids = [process.pid for process in left]
        raise PermanentError(f"processes {pids} of the server at {endpoint.base_url} are still there after SIGKILL.")
    return [process.pid for process in processes]


def _listener(base_url: str) -> psutil.Process:
    port = urllib.parse.urlsplit(base_url).port
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return psutil.Process(connection.pid)
    raise PermanentError(
        f"server.take_over was set, but no process of this machine that can be seen listens on port {port} of "
        f"{base_url}. Stop the server by hand, then start again: the answers are kept."
    )
