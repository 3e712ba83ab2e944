"""Which Python has vLLM."""

from pathlib import Path

from prefect.blocks.core import Block
from pydantic import Field

PROJECT_ROOT = Path(__file__).absolute().parents[1]


class VllmEngine(Block):
    """The environment that runs the vLLM server, the extraction and the training."""

    _block_type_name = "Hero run vLLM engine"
    _block_type_slug = "hero-run-vllm-engine"
    _description = "The environment that runs the vLLM server, the extraction and the training."

    python: str = Field(
        default=".venv-engine/bin/python",
        description="Interpreter with vLLM, torch and this project; a relative path starts at the project's folder.",
    )

    def interpreter(self) -> Path:
        """The interpreter's absolute path (links are kept: they are what makes it an environment)."""
        return PROJECT_ROOT / Path(self.python).expanduser()
