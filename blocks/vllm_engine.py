"""The vLLM of a site: which Python has it, which servers are up already, and what every start of it needs there."""

from pathlib import Path
from typing import Any, ClassVar

from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import ConfigDict, Field, model_validator

from blocks.empty_fields import without_empty_fields
from tasks.recipe import Engine, Recipe, changed
from tasks.redaction import keep_secret

PROJECT_ROOT = Path(__file__).absolute().parents[1]


class VllmEngine(Block):
    """The Python that runs vLLM and the training, or servers that are up, and what they need on this site."""

    _block_type_name = "Hero run vLLM engine"
    _block_type_slug = "hero-run-vllm-engine"
    _description = (
        "The Python that runs vLLM and the training, or servers that are up, and what they need on this site."
    )

    # An error must not repeat what was typed: it may be a key.
    model_config: ClassVar[ConfigDict] = ConfigDict(hide_input_in_errors=True)
    _emptied = model_validator(mode="before")(without_empty_fields)

    python: str = Field(
        default=".venv-engine/bin/python",
        description="Interpreter with vLLM, torch and this project; a relative path starts at the project's folder.",
    )
    endpoints: list[str] = Field(
        default=[],
        description="Servers that are up or loading (http://host:port), asked instead of starting one: the first that "
        "answers is used, and the next when that dies. The extraction and the evaluation start their own.",
    )
    endpoint_model: str | None = Field(
        default=None, description="The id under which they serve the target; empty takes their only one, by name."
    )
    arguments: list[str] = Field(
        default=[],
        description="Added to the recipe's arguments wherever vLLM is started, also for the extraction: --key=value of "
        "the engine, such as --gpu-memory-utilization=0.9. The last of the same name counts.",
    )
    server_arguments: list[str] = Field(
        default=[],
        description="The same for what only vLLM's server knows, such as --reasoning-parser=kimi_k2.",
    )
    environment: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        description="Environment variables of vLLM and of the training, added to the recipe's, such as VLLM_API_KEY or "
        "NCCL_P2P_DISABLE. The UI never shows their values.",
    )
    load_timeout_seconds: float | None = Field(default=None, gt=0, description="Longest load, whatever its progress.")
    stall_timeout_seconds: float | None = Field(default=None, gt=0, description="Longest load without a new log line.")
    token_stall_seconds: float | None = Field(
        default=None, gt=0, description="Longest time without a token while requests wait."
    )
    stop_grace_seconds: float | None = Field(default=None, ge=0, description="Time between SIGTERM and SIGKILL.")
    restarts: int | None = Field(
        default=None, ge=0, description="How often a server that dies while it is asked is started again."
    )

    def interpreter(self) -> Path:
        """The interpreter's absolute path (links are kept: they are what makes it an environment)."""
        return PROJECT_ROOT / Path(self.python).expanduser()

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with what this site changes in it: runtime fields only, so every product keeps its identity.

        Raises:
            RecipeError: A value does not fit its field.
        """
        arguments, variables = self.arguments, self._variables()
        for_serving = [*arguments, *self.server_arguments]
        server, evaluation, extraction = recipe.server.engine, recipe.evaluation.engine, recipe.extraction.engine
        return changed(
            recipe,
            {
                "server": {**self._server_changes(), "engine": _added(server, for_serving, variables)},
                "evaluation": {"engine": _added(evaluation, for_serving, variables)},
                "extraction": {"engine": _added(extraction, arguments, variables)},
                "training": {"environment": {**recipe.training.environment, **variables}},
            },
        )

    def _variables(self) -> dict[str, str]:
        variables = {name: str(value) for name, value in self.environment.get_secret_value().items()}
        for value in variables.values():
            keep_secret(value)
        return variables

    def _server_changes(self) -> dict[str, Any]:
        limits = {"load_timeout_seconds", "stall_timeout_seconds", "token_stall_seconds", "stop_grace_seconds"}
        changes = self.model_dump(include={*limits, "restarts", "endpoint_model"}, exclude_none=True)
        return {**changes, "endpoint": ",".join(self.endpoints)} if self.endpoints else changes


def _added(engine: Engine, arguments: list[str], variables: dict[str, str]) -> dict[str, Any]:
    return {
        "arguments": [*engine.arguments, *arguments],
        "environment": {**engine.environment, **variables},
    }
