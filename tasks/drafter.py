"""The drafter-download task: the checkpoint that training starts from, fetched, found, or made from scratch."""

from pathlib import Path

from blocks import HubAccess, saved_or_default
from tasks.eagle3.config import drafter_config, read_config
from tasks.eagle3.spec import InitialDrafterResult, InitialDrafterSpec
from tasks.policies import stage_task
from tasks.recipe import ModelSource
from tasks.stages import drafter_stage
from tasks.system.engine_child import run_in_engine
from tasks.system.hub import fetch_checkpoint
from tasks.system.manifest import write_manifest
from tasks.system.model_folder import check_checkpoint
from tasks.system.plan import drafter_parameters, model_facts
from tasks.system.run import Product, Run, product_of
from tasks.system.target import ensure_target, target_folder

MODULE = "tasks.eagle3.initialize"


def need_bytes(run: Run) -> int:
    """A float32 drafter of the target's width."""
    return drafter_parameters(run.recipe, model_facts(run.recipe, target_folder(run))) * 4


@stage_task(
    "drafter-download", place=drafter_stage, need_bytes=need_bytes, retries=5, retry_seconds=10, timeout_hours=6
)
def drafter_download(run: Run) -> Product:
    """Provide the base drafter and the layer ids that it was trained on."""
    stage, spec = drafter_stage(run), run.recipe.drafter
    stage.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, files = stage.folder, []
    if spec.source is None:
        child = InitialDrafterSpec(
            target_folder=ensure_target(run, fetch_from_hub), out_folder=stage.folder, drafter=spec
        )
        run_in_engine(run.engine_python, MODULE, child, InitialDrafterResult, run.log_folder, lambda _: None, {})
        files = [path.name for path in stage.folder.iterdir()]
    elif spec.source.kind == "hub":
        files = fetch_from_hub(spec.source, stage.folder, 0)
    else:
        checkpoint = Path(spec.source.name).expanduser().absolute()
        check_checkpoint(checkpoint)
    config = drafter_config(read_config(checkpoint), spec.layer_ids, str(checkpoint / "config.json"))
    facts = {"checkpoint": str(checkpoint), "layer_ids": list(config.layer_ids)}
    return product_of(stage, write_manifest(stage, files, facts))


def fetch_from_hub(source: ModelSource, folder: Path, reserve: int) -> list[str]:
    """Download a checkpoint with this site's hub access; see ``tasks.system.hub.fetch_checkpoint``."""
    hub = saved_or_default(HubAccess)
    token = hub.token.get_secret_value() if hub.token else None
    files = fetch_checkpoint(source.name, source.revision, folder, hub.endpoint, token, reserve)
    return [file.path for file in files]
