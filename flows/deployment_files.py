"""The files in ``deployments/``, read strictly: Prefect ignores a misspelt key in most of them, here it is refused."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from tasks.errors import BadInput, RecipeError
from tasks.recipe import from_json

PROJECT = Path(__file__).absolute().parents[1]
FOLDER = PROJECT / "deployments"
DEPLOYMENTS_PATH = FOLDER / "prefect.yaml"
POOLS_PATH, SCHEDULES_PATH = FOLDER / "work_pools.yaml", FOLDER / "schedules.yaml"
AUTOMATIONS_PATH = FOLDER / "automations.yaml"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PoolChoice:
    """Where a deployment's runs go."""

    name: str
    work_queue_name: str | None = None
    job_variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment, with the keys that both `prefect deploy` and `hero-run deploy` honour."""

    name: str
    entrypoint: str
    work_pool: PoolChoice
    description: str = ""
    tags: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    pull: list[dict[str, Any]] | None = None
    """How a worker gets at the code; by default it changes into the project's folder."""


@dataclass(frozen=True, kw_only=True)
class DeploymentFile:
    """What `prefect deploy` reads, too."""

    deployments: list[Deployment]
    name: str = ""
    prefect_version: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkPool:
    """A work pool as it is created; one that is there is kept."""

    name: str
    type: Literal["process", "kubernetes"]
    concurrency_limit: int
    description: str = ""
    base_job_template: str | None = None
    """A JSON file beside this one; by default the template of the pool's type."""
    queues: list[str] = field(default_factory=list)
    """Beside the default one, which is always there."""


@dataclass(frozen=True, kw_only=True)
class PoolFile:
    """All work pools."""

    work_pools: list[WorkPool]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule as it is created, switched off; one that is there is kept."""

    deployment: str
    slug: str
    """What it is known by, whatever becomes of the rest."""
    cron: str
    timezone: str
    """A name such as Europe/Berlin; local: the one of the machine that deploys."""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScheduleFile:
    """All schedules."""

    schedules: list[Schedule]


def read_deployments(path: Path) -> list[Deployment]:
    """The deployments of one file.

    Raises:
        BadInput: The file cannot be read, a key is unknown or missing, or a value does not fit.
    """
    return _read(DeploymentFile, path).deployments


def read_pools() -> dict[str, WorkPool]:
    """The work pools by name.

    Raises:
        BadInput: As above.
    """
    return {pool.name: pool for pool in _read(PoolFile, POOLS_PATH).work_pools}


def read_schedules() -> list[Schedule]:
    """The schedules.

    Raises:
        BadInput: As above.
    """
    return _read(ScheduleFile, SCHEDULES_PATH).schedules


def read_job_template(pool: WorkPool) -> dict[str, Any] | None:
    """What a pool's workers make of a deployment's job variables; None for the default of the pool's type.

    Raises:
        BadInput: The file cannot be read.
    """
    return load(FOLDER / pool.base_job_template) if pool.base_job_template else None


def load(path: Path) -> dict[str, Any]:
    """A YAML or JSON file that holds a mapping.

    Raises:
        BadInput: It cannot be read as that.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{path} was needed, but it cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise BadInput(f"{path} must hold a mapping, found {type(content).__name__}.")
    return content


def _read(kind: type[T], path: Path) -> T:
    content = {name.replace("-", "_"): value for name, value in load(path).items()}
    try:
        return from_json(kind, json.dumps(content))
    except RecipeError as error:
        where = str(error).removeprefix(f"{kind.__name__}.").removeprefix(f"{kind.__name__} ")
        raise BadInput(f"{path}: {where}") from error


def keys_of(kind: type) -> set[str]:
    """The keys that a mapping of this kind may have."""
    return {found.name for found in dataclasses.fields(kind)}
