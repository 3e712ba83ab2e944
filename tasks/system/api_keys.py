"""API keys of vLLM servers: taken from the environment, never from a command line, which everybody can read."""

import os
from collections.abc import Mapping

API_KEY_VARIABLE = "VLLM_API_KEY"
"""A vLLM server that has it in its environment asks for it."""

_keys: dict[str, str] = {}
"""By the server's address; not in ``Endpoint``, which is written to disk."""


def use_key_of(environment: Mapping[str, str], base_url: str) -> None:
    """From now on, ask the server at this address with this environment's key, or else with this process's own."""
    _keys[base_url] = environment.get(API_KEY_VARIABLE, os.environ.get(API_KEY_VARIABLE, ""))


def api_key(base_url: str) -> str:
    """The key that the server at this address is asked with; empty: none."""
    return _keys.get(base_url, "")


def key_header(base_url: str) -> dict[str, str]:
    """The same as an HTTP header."""
    return {"authorization": f"Bearer {key}"} if (key := api_key(base_url)) else {}
