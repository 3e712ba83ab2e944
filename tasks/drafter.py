"""The drafter-download task: the checkpoint that training starts from, fetched, found, or made from scratch."""

import re
from dataclasses import replace
from pathlib import Path

from prefect.logging import get_run_logger

from blocks import HubAccess, saved_or_default
from tasks import artifacts
from tasks.eagle3.config import drafter_config, read_config
from tasks.eagle3.spec import InitialDrafterResult, InitialDrafterSpec
from tasks.policies import stage_task
from tasks.recipe import ModelSource
from tasks.redaction import keep_secret
from tasks.stages import drafter_stage
from tasks.system import ledger
from tasks.system.disk import readable_bytes, reserve_bytes
from tasks.system.engine_child import run_in_engine
from tasks.system.hub import Fetched, Patience, fetch_checkpoint
from tasks.system.manifest import write_manifest
from tasks.system.model_folder import check_checkpoint
from tasks.system.plan.model import model_facts
from tasks.system.plan.needs import drafter_bytes
from tasks.system.run import Product, Run, product_of
from tasks.system.target import ensure_target, target_folder

MODULE = "tasks.eagle3.initialize"


def need_bytes(run: Run) -> int:
    """A float32 drafter of the target's width; of a download the exact need is known, and asked, when it is listed."""
    if run.recipe.drafter.source is not None:
        return 0
    return drafter_bytes(run.recipe, model_facts(run.recipe, target_folder(run)))


@stage_task(
    "drafter-download", place=drafter_stage, need_bytes=need_bytes, retries=5, retry_seconds=10, timeout_hours=6
)
def drafter_download(run: Run) -> Product:
    """Provide the base drafter and the layer ids that it was trained on."""
    stage, spec = drafter_stage(run), run.recipe.drafter
    stage.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, files, fetched = stage.folder, [], None
    if spec.source is None:
        child = InitialDrafterSpec(
            target_folder=ensure_target(run, fetch_from_hub), out_folder=stage.folder, drafter=spec
        )
        grace_seconds = run.deadline.of_stages.grace_seconds
        run_in_engine(
            run.engine_python, MODULE, child, InitialDrafterResult, run.log_folder, lambda _: None, {},
            grace_seconds=grace_seconds,
        )  # fmt: skip
        files = [path.name for path in stage.folder.iterdir()]
    elif spec.source.kind == "hub":
        fetched = fetch_from_hub(run, spec.source, stage.folder)
        files = fetched.files
    else:
        checkpoint = Path(spec.source.name).expanduser().absolute()
        check_checkpoint(checkpoint)
    config = drafter_config(read_config(checkpoint), spec.layer_ids, str(checkpoint / "config.json"))
    facts = {"checkpoint": str(checkpoint), "layer_ids": list(config.layer_ids)}
    if fetched is not None:
        facts["commit"] = fetched.commit
    checksums = fetched.sha256 if fetched is not None else None
    return product_of(stage, write_manifest(stage, files, facts, checksums))


def fetch_from_hub(run: Run, source: ModelSource, folder: Path) -> Fetched:
    """Download a checkpoint with this site's hub access, inside a task; see ``tasks.system.hub.fetch_checkpoint``."""
    hub, logger = saved_or_default(HubAccess), get_run_logger()
    with artifacts.progress_artifact("download-" + re.sub("[^a-z0-9]+", "-", source.name.lower())) as publish:
        fetched = fetch_checkpoint(
            source.name,
            source.revision,
            folder,
            endpoint=hub.endpoint,
            token=_kept_secret(hub),
            reserve_bytes=reserve_bytes(folder, run.recipe.reserve_share),
            cache_folder=Path(hub.cache_folder).expanduser() if hub.cache_folder else None,
            on_progress=lambda bytes_: publish(
                replace(bytes_, done=bytes_.done / 1e6, total=bytes_.total / 1e6, unit="MB")
            ),
            patience=Patience(files_at_once=hub.files_at_once, tries=hub.tries, silence_seconds=hub.silence_seconds),
        )
    for warning in fetched.warnings:
        logger.warning(warning)
    for kind, count in fetched.faults.items():
        message = f"{kind}, while {source.name} was fetched; survived"
        ledger.note(run.log_folder, ledger.Fault("download", kind, f"download: {kind}", message, count))
    logger.info(
        "%s at revision %s is commit %s: %d files in %s, all verified; %s fetched now, %s from the "
        "cache of the hub's client, faults on the way: %s",
        source.name, source.revision, fetched.commit, len(fetched.files), folder,
        readable_bytes(fetched.fetched_bytes), readable_bytes(fetched.cached_bytes), fetched.faults or "none",
    )  # fmt: skip
    return fetched


def _kept_secret(hub: HubAccess) -> str | None:
    token = hub.token.get_secret_value() if hub.token else None
    if token:
        keep_secret(token)
    return token
