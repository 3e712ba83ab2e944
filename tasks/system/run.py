"""The plain records that cross task edges."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.errors import BadProduct
from tasks.recipe import Recipe
from tasks.system.deadline import NEVER, Deadline
from tasks.system.files import sha256_of
from tasks.system.manifest import MANIFEST_NAME, Manifest, Stage, read_valid_manifest, recorded

USES_FOLDER = "runs"
"""One file a run, one line a stage folder that it used, relative to the data root."""
UNASKED_FACT = "unasked_prompts"
"""Fact of a set of answers: the prompts that a deadline left no time for."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every task is given: the recipe, and where this site keeps things."""

    recipe: Recipe
    id: str
    """The flow run's id at the Prefect API."""
    name: str
    """The flow run's name: logs of this run are kept under it."""
    data_root: Path
    engine_python: Path
    """Interpreter of the environment that has vLLM and torch."""
    refresh: tuple[str, ...] = ()
    """Stages to make anew, finished or not."""
    deadline: Deadline = NEVER
    """When the run must be over; what it makes does not depend on it."""

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


def require_content(product: Product) -> None:
    """Compare a product's files with their checksums, before they are read for the first time.

    States are left to their reader, which does it shard by shard.

    Raises:
        BadProduct: A file differs. It is deleted, so that the next start makes it anew.
    """
    manifest = read_valid_manifest(product.folder)
    for entry in manifest.files if manifest else []:
        path = product.folder / entry.path
        if (found := sha256_of(path)) != entry.sha256:
            path.unlink()
            raise BadProduct(
                f"{path} is damaged: sha256 {entry.sha256} was written, {found} was there. It has been deleted; "
                "start again, and its stage is made anew from what it resumes from."
            )


def finished(run: Run, stage: Stage) -> Manifest | None:
    """The manifest of a stage whose products can be used, or None when it is to be made.

    A stage that this run was asked to refresh is discarded the first time that it is looked at, and only then:
    its own products, and the run's next try after a crash, count as usual.
    """
    if stage.name in run.refresh:
        mark = run.data_root / "refreshed" / f"{run.id}-{stage.name}-{stage.digest}"
        if not mark.exists():
            discard(stage)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return stage.manifest()


def discard(stage: Stage) -> None:
    """Delete a stage's products and what it would resume from; the manifest first, so that none is half believed.

    Of answers that were cut short by a deadline the journal stays: what is wanted are the others.
    """
    manifest = recorded(stage.folder)
    was_cut_short = manifest is not None and manifest.facts.get(UNASKED_FACT, 0) > 0
    (stage.folder / MANIFEST_NAME).unlink(missing_ok=True)
    for folder in (stage.folder, *(() if was_cut_short else stage.resumes_from)):
        if folder.exists():
            shutil.rmtree(folder)


def note_use(run: Run, stage: Stage) -> None:
    """Remember that this run uses these products, for ``hero-run ls`` and ``clean``."""
    path = run.data_root / USES_FOLDER / f"{run.name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{folder.relative_to(run.data_root)}\n" for folder in (stage.folder, *stage.resumes_from)]
    with path.open("a+") as uses:
        uses.seek(0)
        known = uses.readlines()
        uses.writelines(line for line in lines if line not in known)
