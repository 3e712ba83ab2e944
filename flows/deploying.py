"""Everything that a Prefect server must know of the hero run, put there and kept there; safe to do again and again.

What a user may have changed in the UI stays: a pool's limit, a schedule's time, time zone, parameters and switch, an
automation's switch, and parameters and job variables of a deployment that the file does not name. `prefect deploy`
keeps none of these.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tzlocal
from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker
from pydantic import ValidationError

import blocks
from flows.automations import put_automations
from flows.deployment_files import (
    PROJECT,
    SCHEDULES_PATH,
    Deployment,
    Schedule,
    WorkPool,
    read_deployments,
    read_job_template,
    read_pools,
    read_schedules,
)
from flows.prefect_command import NAME
from tasks.errors import BadInput


def deploy(client: SyncPrefectClient, path: Path, notify: str | None) -> Iterator[str]:
    """Put pools, blocks, deployments, schedules and automations there; yields what became of each.

    Args:
        client: Of the API.
        path: File with the deployments.
        notify: Block that notifications go to, as type/name; None: as before, or the one named ``hero-run``.

    Raises:
        BadInput: A file is not what it must be, or what is there is of another kind.
    """
    deployments, pools, schedules = read_deployments(path), read_pools(), read_schedules()
    if not deployments:
        raise BadInput(f"{path} holds no deployment.")
    for name in dict.fromkeys(deployment.work_pool.name for deployment in deployments):
        if name not in pools:
            raise BadInput(f"{path} names the work pool {name!r}. Known pools: {', '.join(pools)} (work_pools.yaml).")
        yield from put_pool(client, pools[name])
    yield register_blocks()
    for deployment in deployments:
        flow: Flow[..., Any] = load_flow_from_entrypoint(deployment.entrypoint)
        yield put_deployment(client, deployment, flow)
        name = f"{flow.name}/{deployment.name}"
        own = [schedule for schedule in schedules if schedule.deployment == name]
        yield from put_schedules(client, name, own)
    yield from put_automations(client, notify)
    yield how_to_start(pools[deployments[0].work_pool.name], deployments[0])


def put_pool(client: SyncPrefectClient, wanted: WorkPool) -> Iterator[str]:
    """Create a work pool with its queues, or keep the one that is there, and say so when it lets two runs through.

    Raises:
        BadInput: The one that is there has another type.
    """
    try:
        found = client.read_work_pool(wanted.name)
    except ObjectNotFound:
        template = read_job_template(wanted) or ProcessWorker.get_default_base_job_template()
        client.create_work_pool(
            WorkPoolCreate(
                name=wanted.name,
                type=wanted.type,
                description=wanted.description,
                base_job_template=template,
                concurrency_limit=wanted.concurrency_limit,
            )
        )
        yield f"created   work pool {wanted.name} ({wanted.type}, {wanted.concurrency_limit} run at a time)"
    else:
        yield _kept_pool(found.type, found.concurrency_limit, found.is_paused, wanted)
    there = {queue.name for queue in client.read_work_queues(work_pool_name=wanted.name)}
    for name in wanted.queues:
        if name not in there:
            client.create_work_queue(name, work_pool_name=wanted.name)
            yield f"created   work queue {name} of {wanted.name}"


def _kept_pool(kind: str, limit: int | None, is_paused: bool, wanted: WorkPool) -> str:
    if kind != wanted.type:
        raise BadInput(
            f"the work pool {wanted.name!r} must be of type {wanted.type}, found one of type {kind}. Delete it "
            f"(prefect work-pool delete {wanted.name}), or name another in deployments/work_pools.yaml."
        )
    line = f"kept      work pool {wanted.name}"
    if limit != wanted.concurrency_limit:
        has = "no limit" if limit is None else f"the limit {limit}"
        line += (
            f"; it has {has}, so that a run may find the GPUs taken and fail: "
            f"prefect work-pool set-concurrency-limit {wanted.name} {wanted.concurrency_limit}"
        )
    return line + (f"; it is paused: prefect work-pool resume {wanted.name}" if is_paused else "")


def register_blocks() -> str:
    """Make the project's block types known, which a server that has the project installed did when it started."""
    kinds = [kind for kind in vars(blocks).values() if isinstance(kind, type) and issubclass(kind, Block)]
    ours = [kind for kind in kinds if kind.__module__.startswith(f"{blocks.__name__}.")]
    for kind in ours:
        kind.register_type_and_schema()
    return f"registered block types {', '.join(sorted(kind.get_block_type_slug() for kind in ours))}"


def put_deployment(client: SyncPrefectClient, wanted: Deployment, flow: Flow[..., Any]) -> str:
    """Create a deployment, or bring the one that is there up to date."""
    name, fields = f"{flow.name}/{wanted.name}", _fields(wanted, flow)
    try:
        found = client.read_deployment_by_name(name)
    except ObjectNotFound:
        client.create_deployment(
            flow_id=client.create_flow_from_name(flow.name), name=wanted.name, enforce_parameter_schema=True, **fields
        )
        return f"created   deployment {name}"
    known = set(fields["parameter_openapi_schema"]["properties"])
    stored = {key: value for key, value in found.parameters.items() if key in known}
    fields["parameters"], kept = merged(stored, wanted.parameters)
    fields["job_variables"], also_kept = merged(found.job_variables, wanted.work_pool.job_variables)
    told = f", with {', '.join(kept + also_kept)} as it was" if kept or also_kept else ""
    if not (changed := {key: value for key, value in fields.items() if value != getattr(found, key)}):
        return f"kept      deployment {name}{told}"
    client.update_deployment(found.id, DeploymentUpdate(**changed))
    return f"updated   deployment {name}{told}"


def _fields(wanted: Deployment, flow: Flow[..., Any]) -> dict[str, Any]:
    schema = parameter_schema(flow).model_dump(exclude_unset=True)
    change_folder = {"prefect.deployments.steps.set_working_directory": {"directory": str(PROJECT)}}
    return {
        "description": wanted.description,
        "entrypoint": wanted.entrypoint,
        "tags": wanted.tags,
        "parameters": wanted.parameters,
        # A misspelt parameter is refused when the run is asked for, not when it has begun.
        "parameter_openapi_schema": {**schema, "additionalProperties": False},
        "pull_steps": [change_folder] if wanted.pull is None else wanted.pull,
        "work_pool_name": wanted.work_pool.name,
        "work_queue_name": wanted.work_pool.work_queue_name or "default",
        "job_variables": wanted.work_pool.job_variables,
    }


def merged(stored: dict[str, Any], wanted: dict[str, Any], path: str = "") -> tuple[dict[str, Any], list[str]]:
    """What is wanted, with what is stored beside it; and the dotted names of the latter."""
    result, kept = dict(stored), [f"{path}{key}" for key in stored if key not in wanted]
    for key, value in wanted.items():
        result[key] = value
        if isinstance(value, dict) and isinstance(stored.get(key), dict):
            result[key], inner = merged(stored[key], value, f"{path}{key}.")
            kept += inner
    return result, kept


def how_to_start(pool: WorkPool, deployment: Deployment) -> str:
    """What comes next."""
    worker = "make worker" if pool.type == "process" else f"prefect worker start --pool {pool.name} --type {pool.type}"
    name = NAME if deployment.name == NAME else f"{NAME}/{deployment.name}"
    return f"next: {worker}, and then: prefect deployment run {name}"


def put_schedules(client: SyncPrefectClient, deployment: str, wanted: list[Schedule]) -> Iterator[str]:
    """Create the schedules of a deployment that are missing, switched off, and keep the others as they are."""
    found = client.read_deployment_by_name(deployment)
    there = {schedule.slug: schedule for schedule in found.schedules}
    for schedule in wanted:
        if schedule.slug in there:
            yield f"kept      schedule {_described(there[schedule.slug])}"
        else:
            (made,) = client.create_deployment_schedules(found.id, [created(schedule)])
            yield f"created   schedule {_described(made)}"


def created(schedule: Schedule) -> DeploymentScheduleCreate:
    """A schedule of the file as it is created.

    Raises:
        BadInput: Cron line or time zone are none.
    """
    timezone = local_timezone() if schedule.timezone == "local" else schedule.timezone
    try:
        cron = CronSchedule(cron=schedule.cron, timezone=timezone)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise BadInput(f"{SCHEDULES_PATH}: schedule {schedule.slug!r}: {message}.") from error
    return DeploymentScheduleCreate(schedule=cron, active=False, parameters=schedule.parameters, slug=schedule.slug)


def local_timezone() -> str:
    """The name of this machine's time zone."""
    return tzlocal.get_localzone_name() or "UTC"


def _described(schedule: DeploymentSchedule) -> str:
    when = schedule.schedule
    time = f"{when.cron}, {when.timezone}" if isinstance(when, CronSchedule) else str(when)
    given = "".join(f", {name}={value}" for name, value in schedule.parameters.items())
    return f"{schedule.slug} ({time}{given}), {'on' if schedule.active else 'off'}"
