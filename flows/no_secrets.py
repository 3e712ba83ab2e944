"""No secret in the parameters of a run, which the API keeps and the UI shows, nor on a command line."""

from collections.abc import Mapping
from typing import Any

from tasks.errors import RecipeError
from tasks.recipe import Recipe
from tasks.redaction import URL_CREDENTIALS, is_secret_name

KEY_ARGUMENTS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
"""Arguments of vLLM that hold a secret, and the variable that does the same."""


def refuse_secrets(changes: Mapping[str, Any], path: str = "") -> None:
    """Look through the changes to a recipe that become parameters of a run.

    Raises:
        RecipeError: One is a secret; the message names it, without its value.
    """
    for name, value in changes.items():
        dotted = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            refuse_secrets(value, dotted)
        elif path.endswith("environment") and is_secret_name(name):
            raise RecipeError(
                f"{dotted} would become a parameter of the run, which everybody can read. Set {name} in the "
                "environment of the vLLM engine block, or in the environment that the run is started in."
            )
        elif URL_CREDENTIALS.search(str(value)):
            raise RecipeError(
                f"{dotted} has credentials in an address, and would become a parameter of the run, which everybody "
                "can read. Take them out; keys of servers and hubs belong into the blocks."
            )


def refuse_key_arguments(recipe: Recipe) -> None:
    """Look through the command lines that vLLM is going to be started with.

    Raises:
        RecipeError: One would show a secret to every user of the machine.
    """
    for engine in (recipe.server.engine, recipe.extraction.engine, recipe.evaluation.engine):
        for argument in engine.arguments:
            name = argument.partition("=")[0].replace("_", "-")
            if name in KEY_ARGUMENTS:
                raise RecipeError(
                    f"{name} on vLLM's command line can be read by everybody on the machine. Take it out, and set "
                    f"{KEY_ARGUMENTS[name]} in the environment of the vLLM engine block."
                )
