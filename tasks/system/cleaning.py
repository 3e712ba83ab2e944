"""What can go from a data root, and its removal: unneeded stages, states that were used up, what crashes left."""

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.system.inventory import DIGEST, NAMES, Inventory, RunRecord, StageFolder, extent
from tasks.system.manifest import consume
from tasks.system.run import USES_FOLDER

LEFTOVER_SECONDS = 86_400.0
"""Half-written files that are younger may still be written, or be continued, by somebody."""

_GENERATION = re.compile(r"(?P<key>.+-(?P<digest>[0-9a-f]{16}))")
_RESULT = re.compile(r"(?P<key>.+-(?P<digest>[0-9a-f]{16}))-(?P<generation>[0-9a-f]{8})")


@dataclass(frozen=True)
class Removal:
    """Something that can go."""

    path: Path
    size_bytes: int
    why: str
    action: Literal["delete", "consume"] = "delete"


def removals(
    inventory: Inventory,
    who: Mapping[Path, Sequence[str]],
    waiting: Mapping[Path, str] | None,
    keep_runs: int | None,
    kept: Sequence[RunRecord],
) -> list[Removal]:
    """Everything that can go, largest kind first.

    Args:
        inventory: What is on disk.
        who: Folder to those who need it.
        waiting: Folders of states to why they must stay; None leaves all states alone.
        keep_runs: Logs and records of older runs go; None keeps all logs.
        kept: The runs whose products are kept.
    """
    gone = [_stage_removal(inventory, stage) for stage in inventory.stages if _can_go(stage, who)]
    paths = {removal.path for removal in gone}
    staying = [stage for stage in inventory.stages if stage.folder not in paths]
    if waiting is not None:
        gone += [removal for stage in staying if (removal := _consumption(stage, waiting))]
    gone += _leftovers(inventory, paths)
    gone += _records(inventory.data_root, {stage.digest for stage in staying})
    gone += _runs(inventory, {stage.name for stage in staying}, keep_runs, kept)
    return gone


def _can_go(stage: StageFolder, who: Mapping[Path, Sequence[str]]) -> bool:
    return stage.folder not in who and stage.state != "unknown" and bool(DIGEST.fullmatch(stage.digest))


def _stage_removal(inventory: Inventory, stage: StageFolder) -> Removal:
    if stage.folder.is_symlink():
        why = f"nobody needs it; only the link goes, {stage.folder.resolve()} stays"
        return Removal(stage.folder, stage.folder.lstat().st_size, why)
    users = inventory.used_by(stage)
    last = f"; last used by {users[0].name}" if users else "; no run on record used it"
    return Removal(stage.folder, stage.extent.size_bytes, f"no recipe and no kept run needs it{last}")


def _consumption(stage: StageFolder, waiting: Mapping[Path, str]) -> Removal | None:
    if waiting.get(stage.folder) or stage.folder not in waiting or stage.manifest is None:
        return None
    left = [entry for entry in stage.manifest.files if (stage.folder / entry.path).exists()]
    size_bytes = sum(entry.size_bytes for entry in left)
    why = "every training on these states is finished; they are marked as consumed and not captured again"
    return Removal(stage.folder, size_bytes, why, "consume") if left else None


def _leftovers(inventory: Inventory, gone: set[Path]) -> list[Removal]:
    now = time.time()
    return [
        Removal(left.path, left.size_bytes, "half written or found to be wrong, and older than a day")
        for left in inventory.leftovers
        if now - left.changed_seconds > LEFTOVER_SECONDS and not gone.intersection(left.path.parents)
    ]


def _records(data_root: Path, digests: set[str]) -> list[Removal]:
    """Prefect's cache of stages that are gone, or whose cached result was renewed; other files are left alone."""
    found = []
    for path in [*_listing(data_root / "generations"), *_listing(data_root / "refreshed")]:
        match = _GENERATION.fullmatch(path.name)
        if match and match["digest"] not in digests:
            found.append(_record(path, "its stage is gone"))
    for path in _listing(data_root / "results"):
        match = _RESULT.fullmatch(path.name)
        if match and match["digest"] not in digests:
            found.append(_record(path, "its stage is gone"))
        elif match and _text(data_root / "generations" / match["key"]) != match["generation"]:
            found.append(_record(path, "a newer result took its place"))
    return found


def _runs(inventory: Inventory, staying: set[str], keep_runs: int | None, kept: Sequence[RunRecord]) -> list[Removal]:
    """Records of runs that are not kept and of whose products nothing is left; with ``keep_runs`` old logs too."""
    folder, kept_names = inventory.data_root / USES_FOLDER, {run.name for run in kept}
    old = [run for run in inventory.runs if run.name not in kept_names]
    if keep_runs is None:
        why = "nothing that this run used is left"
        return [_record(folder / f"{run.name}.txt", why) for run in old if not run.folders & staying]
    why = f"not one of the newest {keep_runs} runs"
    logs = {path.name: path for path in _listing(inventory.data_root / "logs") if path.is_dir()}
    seconds = {name: extent(path).newest_seconds for name, path in logs.items()}
    seconds |= {run.name: run.seconds for run in inventory.runs}
    newest = set(sorted(seconds, key=lambda name: seconds[name], reverse=True)[:keep_runs])
    gone = [
        Removal(path, extent(path).size_bytes, why) for name, path in logs.items() if name not in newest | kept_names
    ]
    return gone + [_record(folder / f"{run.name}.txt", why) for run in old]


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _record(path: Path, why: str) -> Removal:
    return Removal(path, extent(path).size_bytes, why)


def remove(removal: Removal) -> int:
    """Carry out a removal, the manifest first, so that a kill in between leaves nothing half believed.

    Links are removed, never what they point to.

    Returns:
        How many bytes were freed.

    Raises:
        BadProduct: States that were to be consumed are not whole.
        OSError: Something could not be deleted; what was freed until then is lost to the count.
    """
    path = removal.path
    if removal.action == "consume":
        return consume(path)
    before = extent(path).size_bytes
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return before
    for name in NAMES:
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path)
    return before
