"""``hero-run ls``, ``verify`` and ``clean``: what is on disk, is it as it was written, what can go. No API is asked."""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from flows import store_text
from flows.recipes import RECIPES, named
from flows.store_lock import no_run_on
from tasks.errors import BadInput, HeroRunError, PermanentError
from tasks.need import KEPT_DAYS, Needs, kept_runs, needs
from tasks.system.cleaning import Removal, removals, remove
from tasks.system.disk import free_bytes, readable_bytes
from tasks.system.inventory import Inventory, StageFolder, is_folder, span_text, take_inventory
from tasks.system.verifying import OnBytes, Verified, entries_of, put_right, verify

PROGRESS_EVERY_SECONDS = 1.0


def add_commands(commands: Any) -> None:
    """Register the three commands with the subparsers of ``hero-run``."""
    ls = _command(commands, "ls", "list what is on disk: stage, bytes, age, who used it and who needs it", _LS_TEXT)
    ls.set_defaults(action=_ls)
    check = _command(commands, "verify", "hash everything on disk against its manifests", _VERIFY_TEXT)
    text = "only stages of this kind (states), name (extraction) or digest; may be given several times"
    check.add_argument("--stage", action="append", default=[], metavar="KIND|DIGEST", dest="stages", help=text)
    check.add_argument(
        "--discard", action="store_true", help="delete damaged files, so that the next run makes them anew"
    )
    check.set_defaults(action=_verify)
    clean = _command(commands, "clean", "name what no recipe needs, and with --yes delete it", _CLEAN_TEXT)
    clean.add_argument("--yes", action="store_true", help="delete; without it nothing is")
    clean.add_argument("--states", action="store_true", help="also delete hidden states whose training is finished")
    text = (
        f"keep only what the newest N runs used, and their logs (default: runs of the last {KEPT_DAYS} days, all logs)"
    )
    clean.add_argument("--keep-runs", type=_count, metavar="N", help=text)
    clean.set_defaults(action=_clean)


_ROOT_TEXT = "Without a recipe and a folder: the data roots of all recipes that exist on this machine."
_LS_TEXT = f"List what lies under a data root, and who still needs it. {_ROOT_TEXT}"
_VERIFY_TEXT = (
    "Hash every listed file against its manifest; of unfinished hidden states every shard that the index lists. "
    f"{_ROOT_TEXT} Exits 1 when anything was damaged, also with --discard."
)
_CLEAN_TEXT = (
    "Name what can go, and why the rest stays. A stage stays when one of the recipes leads to it, or when a run of "
    f"the last {KEPT_DAYS} days used it: a run with --set makes what no recipe names. {_ROOT_TEXT}"
)


def _command(commands: Any, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=description)
    parser.add_argument("recipe", nargs="?", help="look where this recipe writes")
    parser.add_argument(
        "--data-root", metavar="DIR", help="look here; needed where a run was given one, or a block names it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of runs was needed, 0 or more; found {text!r}")
    return int(text)


def data_roots(recipe: str | None, data_root: str | None) -> list[Path]:
    """The data roots that a command is about.

    Raises:
        BadInput: There is none.
        RecipeError: There is no such recipe.
    """
    asked = [named(recipe).data_root] if recipe else [named(name).data_root for name in RECIPES]
    paths = list(dict.fromkeys(Path(root).expanduser().absolute() for root in ([data_root] if data_root else asked)))
    if found := [path for path in paths if is_folder(path)]:
        return found
    if len(paths) == 1:
        raise BadInput(
            f"the data root {paths[0]} was needed, but there is no such folder, or this user may not look at it. "
            "Name another with --data-root DIR."
        )
    raise BadInput(
        f"no recipe has a data root on this machine (looked for {', '.join(map(str, paths))}). "
        "Name one with --data-root DIR, or run a recipe first."
    )


def _looked_at(data_root: Path, keep_runs: int | None = None) -> tuple[Inventory, Needs]:
    inventory = take_inventory(data_root)
    return inventory, needs(inventory, [named(name) for name in RECIPES], keep_runs)


def _ls(parsed: argparse.Namespace) -> int:
    reports = []
    for data_root in data_roots(parsed.recipe, parsed.data_root):
        inventory, need = _looked_at(data_root)
        gone = removals(inventory, need.who, need.waiting, None, kept_runs(inventory, None))
        if parsed.json:
            reports.append(store_text.inventory_json(inventory, need, gone))
        else:
            print(store_text.inventory_text(inventory, need, gone), end="\n\n", flush=True)
    if parsed.json:
        print(json.dumps(reports, indent=1))
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    reports, damaged = [], 0
    for data_root in data_roots(parsed.recipe, parsed.data_root):
        stages = _chosen(take_inventory(data_root), parsed.stages)
        with no_run_on(data_root, "hero-run verify --discard") if parsed.discard else nullcontext():
            for verified in _verified(stages):
                damaged += len(verified.damaged)
                done = _discard(verified) if parsed.discard and verified.damaged else []
                if parsed.json:
                    reports.append({**store_text.verified_json(data_root, verified), "done": done})
                else:
                    print(
                        "\n".join([*store_text.verified_lines(verified), *(f"    {line}" for line in done)]), flush=True
                    )
    if parsed.json:
        print(json.dumps(reports, indent=1))
    elif damaged:
        print(store_text.damage_advice(damaged, parsed.discard))
    return 1 if damaged else 0


def _discard(verified: Verified) -> list[str]:
    for damage in verified.damaged:  # named before it is touched
        print(f"to be put right: {verified.stage.folder / damage.path}", file=sys.stderr, flush=True)
    try:
        return put_right(verified)
    except (OSError, ValueError, KeyError) as error:
        raise PermanentError(
            f"{verified.stage.folder}: damage could not be taken out of the way ({error}). "
            "Delete the folder by hand, or do this as the user that the runs belong to."
        ) from error


def _chosen(inventory: Inventory, wanted: list[str]) -> list[StageFolder]:
    def is_wanted(stage: StageFolder) -> bool:
        names = {stage.kind, stage.manifest.stage if stage.manifest else stage.kind}
        return not wanted or any(text in names or (len(text) >= 4 and stage.digest.startswith(text)) for text in wanted)

    chosen = [stage for stage in inventory.stages if is_wanted(stage)]
    if wanted and not chosen:
        known = ", ".join(stage.name for stage in inventory.stages) or "nothing"
        raise BadInput(f"no stage under {inventory.data_root} is called {' or '.join(wanted)}. There is: {known}.")
    return chosen


def _verified(stages: list[StageFolder]) -> Iterator[Verified]:
    total_bytes = 0
    for stage in stages:
        try:
            total_bytes += sum(entry.size_bytes for entry in entries_of(stage))
        except HeroRunError:  # said when its turn comes
            continue
    with _progress(total_bytes) as on_bytes:
        for stage in stages:
            found = verify(stage, on_bytes)
            _clear_progress()
            yield found


@contextmanager
def _progress(total_bytes: int) -> Iterator[OnBytes]:
    """How far the hashing is, with rate and ETA, on stderr when somebody looks at it."""
    started, done, lock, said = time.monotonic(), 0, threading.Lock(), [0.0]

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            now = time.monotonic()
            if not sys.stderr.isatty() or now - said[0] < PROGRESS_EVERY_SECONDS:
                return
            said[0] = now
            rate = done / max(now - started, 1e-3)
            eta = span_text(max(0, total_bytes - done) / max(rate, 1.0))
            share = (
                f"{readable_bytes(done)} of {readable_bytes(total_bytes)} ({100 * done / max(total_bytes, 1):.0f} %)"
            )
            print(f"\r\033[Kverifying {share}, {rate / 1e6:,.0f} MB/s, ETA {eta}", end="", file=sys.stderr, flush=True)

    yield on_bytes
    seconds = time.monotonic() - started
    print(
        f"{readable_bytes(done)} hashed in {span_text(seconds)}, {done / 1e6 / max(seconds, 1e-3):,.0f} MB/s",
        file=sys.stderr,
    )


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _clean(parsed: argparse.Namespace) -> int:
    reports, failures = [], Counter[str]()
    for data_root in data_roots(parsed.recipe, parsed.data_root):
        with no_run_on(data_root, "hero-run clean") if parsed.yes else nullcontext():
            inventory, need = _looked_at(data_root, parsed.keep_runs)
            kept = kept_runs(inventory, parsed.keep_runs)
            gone = removals(inventory, need.who, need.waiting if parsed.states else None, parsed.keep_runs, kept)
            if not parsed.json:
                print(store_text.clean_text(inventory, need, gone, parsed.states), flush=True)
            if parsed.yes:
                _refuse_unknown(data_root, need)
            freed = _removed(gone, parsed.json, failures) if parsed.yes else 0
        if parsed.json:
            reports.append(store_text.clean_json(inventory, need, gone, parsed.yes, freed))
        elif parsed.yes:
            free = readable_bytes(free_bytes(data_root))
            print(f"freed {readable_bytes(freed)}; {free} are free now.\n")
        else:
            print("nothing was deleted: add --yes\n" if gone else "nothing can go.\n")
    if parsed.json:
        print(json.dumps(reports, indent=1))
    return 1 if failures else 0


def _refuse_unknown(data_root: Path, need: Needs) -> None:
    """Delete nothing while a recipe that writes here cannot be followed: its products would look unneeded."""
    for name, why in need.unknown.items():
        if Path(named(name).data_root).expanduser().absolute() == data_root:
            raise PermanentError(
                f"what recipe {name} needs under {data_root} cannot be told: {why} "
                "Nothing was deleted. Put back what is missing, and run this again."
            )


def _removed(gone: Iterable[Removal], is_quiet: bool, failures: Counter[str]) -> int:
    freed = 0
    for removal in gone:
        verb = "consuming" if removal.action == "consume" else "deleting"
        print(
            f"{verb} {removal.path} ({readable_bytes(removal.size_bytes)})", file=sys.stderr if is_quiet else sys.stdout
        )
        try:
            freed += remove(removal)
        except (OSError, HeroRunError) as error:
            failures[str(removal.path)] += 1
            print(f"hero-run: {removal.path} could not be removed whole: {error}", file=sys.stderr, flush=True)
    return freed
