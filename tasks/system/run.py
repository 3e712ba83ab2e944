"""The plain records that cross task edges."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import BadProduct
from tasks.recipe import Recipe
from tasks.system.manifest import Manifest, Stage


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every task is given: the recipe, and where this site keeps things."""

    recipe: Recipe
    name: str
    """The flow run's name: logs of this run are kept under it."""
    data_root: Path
    engine_python: Path
    """Interpreter of the environment that has vLLM and torch."""

    @property
    def log_folder(self) -> Path:
        """Raw logs and child specs of this run."""
        return self.data_root / "logs" / self.name


@dataclass(frozen=True, kw_only=True)
class Product:
    """A finished stage: where it is, what its content is, and the facts in its manifest."""

    folder: Path
    content_sha256: str
    facts: dict[str, Any] = field(default_factory=dict)


def product_of(stage: Stage, manifest: Manifest | None = None) -> Product:
    """The record of a finished stage.

    Raises:
        BadProduct: It is not finished.
    """
    manifest = manifest or stage.manifest()
    if manifest is None:
        raise BadProduct(f"{stage.name} is not finished: {stage.folder} has no manifest that matches its files.")
    return Product(folder=stage.folder, content_sha256=manifest.content_sha256, facts=manifest.facts)
