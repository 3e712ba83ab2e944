"""What lies under a data root: stage folders and their state, which runs used them, and what crashes left behind.

Looking never fails: what cannot be read, or vanishes meanwhile, is told in ``problems``.
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tasks.system.files import PARTIAL_SUFFIX
from tasks.system.manifest import CONSUMED_NAME, MANIFEST_NAME, Manifest, recorded, unmatched
from tasks.system.run import USES_FOLDER

KINDS = ("targets", "drafters", "answers", "responses", "states", "trained", "evaluations")
"""Folders of stages, in the order of the run."""

RECORDS = ("generations", "plans", "refreshed", "results", USES_FOLDER)
"""Folders of small files about the stages."""

DIGEST = re.compile(r"[0-9a-f]{16}")
LEFTOVER_SUFFIXES = (PARTIAL_SUFFIX, ".corrupt", ".incomplete")
"""Endings of files that are never a product: half written, or found to be wrong."""

NAMES = (MANIFEST_NAME, CONSUMED_NAME)

State = Literal["complete", "unfinished", "damaged", "consumed", "journal", "unknown"]


@dataclass(frozen=True)
class Extent:
    """A folder with all that is in it; links are counted, not followed."""

    size_bytes: int = 0
    files: int = 0
    newest_seconds: float = 0.0
    """Unix time of the last change."""
    leftovers: tuple["Leftover", ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leftover:
    """A file that a crash or a failed check left."""

    path: Path
    size_bytes: int
    changed_seconds: float


@dataclass(frozen=True)
class StageFolder:
    """One stage's folder."""

    folder: Path
    kind: str
    """The folder above it."""
    state: State
    extent: Extent
    manifest: Manifest | None
    """What was finished here once, believed or not."""
    made_seconds: float
    """Unix time at which the manifest was written; without one, of the last change."""
    unmatched: dict[str, str] = field(default_factory=dict)
    """Listed files that are not as listed."""

    @property
    def digest(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def name(self) -> str:
        """Relative to the data root."""
        return f"{self.kind}/{self.digest}"

    @property
    def state_text(self) -> str:
        """The state in a word or two."""
        if self.state == "damaged" and self.unmatched:
            return f"damaged: {len(self.unmatched)} file{'s' if len(self.unmatched) > 1 else ''}"
        return self.state


@dataclass(frozen=True)
class RunRecord:
    """What a run left about itself: which folders it used, and when it was last heard of."""

    name: str
    seconds: float
    """Unix time."""
    folders: frozenset[str]
    """Relative to the data root."""


@dataclass(frozen=True)
class Inventory:
    """A whole data root."""

    data_root: Path
    stages: list[StageFolder]
    sums: dict[str, Extent]
    """Logs, records and the rest, by name."""
    runs: list[RunRecord]
    """Newest first."""
    leftovers: list[Leftover]
    problems: list[str]

    @property
    def size_bytes(self) -> int:
        """Everything together."""
        return sum(stage.extent.size_bytes for stage in self.stages) + sum(e.size_bytes for e in self.sums.values())

    def used_by(self, stage: StageFolder) -> list[RunRecord]:
        """The runs that used a stage, newest first."""
        return [run for run in self.runs if stage.name in run.folders]


def take_inventory(data_root: Path) -> Inventory:
    """Look at everything under a data root; nothing is opened but manifests and the runs' records."""
    problems: list[str] = []
    stages = [_stage(kind, path) for kind in KINDS for path in _entries(data_root / kind, problems)]
    sums = {"logs": extent(data_root / "logs")}
    sums["records"] = _added([extent(data_root / name) for name in RECORDS])
    known = {*KINDS, *RECORDS, "logs"}
    others = [path for path in _entries(data_root, problems) if path.name not in known]
    strays = [path for kind in KINDS for path in _entries(data_root / kind, problems, folders=False)]
    sums["other"] = _added([extent(path) for path in [*others, *strays]])
    # Only where we write ourselves: a file of this name elsewhere may be somebody else's download.
    ours = [stage.extent for stage in stages if DIGEST.fullmatch(stage.digest) and not stage.folder.is_symlink()]
    for found in [*(stage.extent for stage in stages), *sums.values()]:
        problems.extend(found.problems)
    leftovers = [leftover for found in [*ours, sums["records"]] for leftover in found.leftovers]
    return Inventory(data_root, stages, sums, run_records(data_root), leftovers, sorted(set(problems)))


def _entries(folder: Path, problems: list[str], folders: bool | None = None) -> list[Path]:
    """What is in a folder, by name; of the folders of a kind only sub-folders (and links), or only what is none."""
    try:
        found = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror}")
        return []
    if folder.name not in KINDS:
        return found
    return [path for path in found if (is_folder(path) or path.is_symlink()) != (folders is False)]


def _stage(kind: str, folder: Path) -> StageFolder:
    # A stage may have been moved to another volume and linked; links inside it are not followed.
    found = extent(folder.resolve() if is_folder(folder) else folder)
    if not is_folder(folder) and folder.is_symlink():
        found = replace(
            found, problems=(*found.problems, f"{folder} is a link to {folder.readlink()}: nothing is there")
        )
    try:
        manifest = recorded(folder)
        faults = unmatched(folder, manifest) if manifest else {}
        times = {path.name: path.stat().st_mtime for name in NAMES if (path := folder / name).exists()}
        for name in times:
            (folder / name).open().close()
    except OSError as error:
        found = replace(found, problems=(*found.problems, f"{error.filename} cannot be read: {error.strerror}"))
        return StageFolder(folder, kind, "unknown", found, None, found.newest_seconds)
    state, faults = _state(kind, folder, found, manifest, faults, set(times))
    return StageFolder(folder, kind, state, found, manifest, next(iter(times.values()), found.newest_seconds), faults)


def _state(
    kind: str, folder: Path, found: Extent, manifest: Manifest | None, faults: dict[str, str], names: set[str]
) -> tuple[State, dict[str, str]]:
    if not DIGEST.fullmatch(folder.name) or found.problems:
        return "unknown", {}
    if names and manifest is None:
        return "damaged", dict.fromkeys(sorted(names), "it cannot be read as a manifest")
    if MANIFEST_NAME in names:
        return ("damaged", faults) if faults else ("complete", {})
    if CONSUMED_NAME in names:
        return "consumed", {}
    return ("journal" if kind == "answers" else "unfinished"), {}


def extent(path: Path) -> Extent:
    """How much lies at a path, and which leftovers are among it."""
    size_bytes = files = 0
    leftovers: list[Leftover] = []
    problems: list[str] = []
    top = _status(path, problems)
    newest = top.st_mtime if top else 0.0
    for file in _files(path, problems) if top and stat.S_ISDIR(top.st_mode) else [path]:
        if (status := _status(file, problems)) is None:
            continue
        size_bytes, files, newest = size_bytes + status.st_size, files + 1, max(newest, status.st_mtime)
        if file.name.endswith(LEFTOVER_SUFFIXES):
            leftovers.append(Leftover(file, status.st_size, status.st_mtime))
    return Extent(size_bytes, files, newest, tuple(leftovers), tuple(dict.fromkeys(problems)))


def _status(path: Path, problems: list[str]) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
        return None


def _files(path: Path, problems: list[str]) -> Iterator[Path]:
    """Every file and link below a folder; links are not followed."""

    def told(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{error.filename} cannot be read: {error.strerror}")

    for folder, sub_folders, names in os.walk(path, onerror=told):
        links = [name for name in sub_folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in [*names, *links])


def files_below(folder: Path) -> list[str]:
    """Every file and link below a folder that can be read, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in _files(folder, []))


def is_folder(path: Path) -> bool:
    """Whether there is a folder, or a link to one, that this user can look at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _added(extents: list[Extent]) -> Extent:
    return Extent(
        sum(one.size_bytes for one in extents),
        sum(one.files for one in extents),
        max((one.newest_seconds for one in extents), default=0.0),
        tuple(leftover for one in extents for leftover in one.leftovers),
        tuple(problem for one in extents for problem in one.problems),
    )


def run_records(data_root: Path) -> list[RunRecord]:
    """The runs that left a record of what they used, newest first; an unreadable record counts as empty."""
    records = []
    for path in sorted((data_root / USES_FOLDER).glob("*.txt")):
        try:
            seconds = path.stat().st_mtime
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        records.append(RunRecord(path.stem, seconds, frozenset(line for line in lines if line)))
    return sorted(records, key=lambda record: (record.seconds, record.name), reverse=True)


def age_text(since_seconds: float) -> str:
    """How long ago a Unix time is."""
    return span_text(max(0.0, time.time() - since_seconds)) if since_seconds else ""


def span_text(seconds: float) -> str:
    """A time in its largest fitting unit: 40 s, 12 min, 3 h, 2 d."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length or (unit != "d" and seconds >= length):
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
