"""Somebody else's vLLM server: awaited, checked and used; stopped only when the user said so."""

import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tasks.errors import BadInput, GaveUp, PermanentError
from tasks.recipe import Server
from tasks.redaction import URL_CREDENTIALS
from tasks.system.api_keys import use_key_of
from tasks.system.processes import raise_if_stopping
from tasks.system.vllm_server import Endpoint, listed_models, refusal_text, say_hello

POLL_SECONDS = 1.0
KILL_WAIT_SECONDS = 20.0


def find_server(server: Server, target_name: str, window_tokens: int, on_phase: Callable[[str], None]) -> Endpoint:
    """Wait until a server at ``server.endpoint`` is up, and check that it can do what is asked of it.

    Args:
        server: Its address or addresses, the model's id there, and how long it may be loading.
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
    addresses = base_urls_of(server.endpoint)
    for address in addresses:
        use_key_of(server.engine.environment, address)
    base_url, models = _await_models(addresses, server.load_timeout_seconds, on_phase)
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


def base_urls_of(endpoint: str) -> list[str]:
    """The addresses of a list that is separated by commas; see ``base_url_of``."""
    return [base_url_of(address.strip()) for address in endpoint.split(",")]


def base_url_of(address: str) -> str:
    """``http://host:port`` of an address that may end in ``/`` or ``/v1``.

    Raises:
        BadInput: It is not an HTTP address, or credentials are written into it.
    """
    if URL_CREDENTIALS.search(address):
        raise BadInput(
            f"server.endpoint must be http://host:port, found {address!r} with credentials in it. Take them out, and "
            "set VLLM_API_KEY in the environment of the vLLM engine block."
        )
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"server.endpoint must be http://host:port, found {address!r}.")
    return f"{parts.scheme}://{parts.netloc}"


def _await_models(
    addresses: Sequence[str], timeout_seconds: float, on_phase: Callable[[str], None]
) -> tuple[str, list[dict[str, Any]]]:
    """The first address, in their order, at which a server lists models, and what it lists."""
    # A server that is loading refuses connections: its port opens when it is ready.
    deadline, told, where = time.monotonic() + timeout_seconds, False, " or ".join(addresses)
    while True:
        for base_url in addresses:
            if models := listed_models(base_url):
                return base_url, models
        raise_if_stopping()
        if time.monotonic() > deadline:
            raise GaveUp(
                f"no vLLM server answered at {where} within {timeout_seconds:.0f} s. Start it, correct "
                "server.endpoint, or leave that empty to have one started (--set server.endpoint=)."
            )
        if not told:
            on_phase(f"waiting for the server at {where}, for up to {timeout_seconds:.0f} s")
            told = True
        time.sleep(POLL_SECONDS)


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
            f"the server at {endpoint.base_url} refuses a short request with HTTP {error.code}: {refusal_text(error)}."
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
