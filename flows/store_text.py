"""What ``hero-run ls``, ``verify`` and ``clean`` print, as text for people and as JSON."""

from pathlib import Path
from typing import Any

from tasks.need import Needs
from tasks.system.cleaning import Removal
from tasks.system.disk import free_bytes, readable_bytes
from tasks.system.inventory import Inventory, StageFolder, age_text
from tasks.system.verifying import Verified

RIGHT_ALIGNED = {"bytes", "files", "age"}
STRAYS_NAMED = 5


def inventory_text(inventory: Inventory, need: Needs, gone: list[Removal]) -> str:
    """The list of ``hero-run ls``, headed by the data root."""
    rows = [_row(inventory, need, stage) for stage in inventory.stages]
    rows += [
        _sum_row(name, found.size_bytes, found.files) for name, found in inventory.sums.items() if found.size_bytes
    ]
    if inventory.leftovers:
        size_bytes = sum(left.size_bytes for left in inventory.leftovers)
        rows.append(_sum_row("leftovers", size_bytes, len(inventory.leftovers), "half written; in the sums above"))
    free = readable_bytes(free_bytes(inventory.data_root))
    lines = [str(inventory.data_root), *table_lines(rows or [_sum_row("nothing yet", 0, 0)])]
    lines.append(f"total {readable_bytes(inventory.size_bytes)}; {free} are free on this volume.")
    lines += _can_go_lines(inventory, gone)
    lines += [f"unsure what recipe {name} needs: {why}" for name, why in need.unknown.items()]
    return "\n".join([*lines, *(f"problem: {problem}" for problem in inventory.problems)])


def _can_go_lines(inventory: Inventory, gone: list[Removal]) -> list[str]:
    by_action = {"delete": 0, "consume": 0}
    for removal in gone:
        by_action[removal.action] += removal.size_bytes
    command = f"hero-run clean --data-root {inventory.data_root}"
    lines = [f"{readable_bytes(by_action['delete'])} can go: {command}"] if by_action["delete"] else []
    if by_action["consume"]:
        lines.append(f"{readable_bytes(by_action['consume'])} of hidden states are used up: {command} --states")
    return lines


def _row(inventory: Inventory, need: Needs, stage: StageFolder) -> dict[str, str]:
    runs = [run.name for run in inventory.used_by(stage)]
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return {
        "stage": stage.kind,
        "digest": stage.digest,
        "state": stage.state_text,
        "bytes": readable_bytes(stage.extent.size_bytes),
        "files": str(stage.extent.files),
        "age": age_text(stage.made_seconds),
        "needed by": _needed_by(need, stage),
        "used by": f"{runs[0]}{more}" if runs else "no run",
        "facts": facts_text(stage),
    }


def _needed_by(need: Needs, stage: StageFolder) -> str:
    who = need.who.get(stage.folder, [])
    recipes = [text.removeprefix("recipe ") for text in who if text.startswith("recipe ")]
    if recipes:
        return recipes[0] if len(recipes) == 1 else f"{recipes[0]}, {len(recipes) - 1} more"
    if not who:
        return "?" if stage.state == "unknown" else "no one"
    return "a recent run" if who[0].startswith("run ") else "its answers"


def _sum_row(name: str, size_bytes: int, files: int, facts: str = "") -> dict[str, str]:
    empty = dict.fromkeys(("digest", "state", "age", "needed by", "used by"), "")
    return {"stage": name, **empty, "bytes": readable_bytes(size_bytes), "files": str(files), "facts": facts}


def facts_text(stage: StageFolder) -> str:
    """The manifest's facts in a few words; empty where there are none that people look for."""
    facts = stage.manifest.facts if stage.manifest else {}
    try:
        match stage.kind:
            case "targets":
                return str(facts["source"])
            case "drafters":
                return f"layers {', '.join(map(str, facts['layer_ids']))}"
            case "responses":
                tokens = facts["prompt_tokens"] + facts["answer_tokens"]
                return f"{facts['training_samples'] + facts['validation_samples']:,} samples, {tokens:,} tokens"
            case "states":
                return f"{facts['samples']:,} samples, {facts['tokens']:,} tokens"
            case "trained":
                base, best = facts["base_acceptance_length"], facts["best_acceptance_length"]
                return f"acceptance length {best:.2f} simulated, base {base:.2f}"
            case "evaluations":
                lengths = {arm["name"]: arm["acceptance_length"] for arm in facts["arms"]}
                verdict = facts["verdict"]["verdict"]
                return f"{verdict}: acceptance length {lengths['trained']:.2f}, base {lengths['base']:.2f}"
    except (KeyError, TypeError, ValueError):  # of an earlier version, or damaged
        return ""
    return ""


def table_lines(rows: list[dict[str, str]]) -> list[str]:
    """Rows in aligned columns under a header."""
    names = ["stage", "digest", "state", "bytes", "files", "age", "needed by", "used by", "facts"]
    table = [{name: name for name in names}, *rows]
    widths = {name: max(len(row[name]) for row in table) for name in names}

    def cell(name: str, text: str) -> str:
        return text.rjust(widths[name]) if name in RIGHT_ALIGNED else text.ljust(widths[name])

    return ["  ".join(cell(name, row[name]) for name in names).rstrip() for row in table]


def inventory_json(inventory: Inventory, need: Needs, gone: list[Removal]) -> dict[str, Any]:
    """The same as plain data."""
    stages = [
        {
            **_stage_json(stage),
            "made": stage.made_seconds,
            "facts": stage.manifest.facts if stage.manifest else {},
            "unmatched": stage.unmatched,
            "used_by": [run.name for run in inventory.used_by(stage)],
            "needed_by": need.who.get(stage.folder, []),
        }
        for stage in inventory.stages
    ]
    return {
        "data_root": str(inventory.data_root),
        "stages": stages,
        "sums": {name: {"bytes": e.size_bytes, "files": e.files} for name, e in inventory.sums.items()},
        "leftovers": [str(left.path) for left in inventory.leftovers],
        "total_bytes": inventory.size_bytes,
        "free_bytes": free_bytes(inventory.data_root),
        "can_go": [_removal_json(removal) for removal in gone],
        "problems": [*inventory.problems, *need.unknown.values()],
    }


def _stage_json(stage: StageFolder) -> dict[str, Any]:
    size_bytes, files = stage.extent.size_bytes, stage.extent.files
    return {"folder": str(stage.folder), "kind": stage.kind, "state": stage.state, "bytes": size_bytes, "files": files}


def _removal_json(removal: Removal) -> dict[str, Any]:
    return {
        "path": str(removal.path),
        "bytes": removal.size_bytes,
        "action": removal.action,
        "why": removal.why,
    }


def verified_lines(verified: Verified) -> list[str]:
    """One line a stage, and one for each damaged file and the stray ones."""
    stage, count = verified.stage, len(verified.damaged)
    said = f"damaged: {count} file{'s' if count > 1 else ''}" if count else verified.said
    checked = f" ({readable_bytes(verified.checked_bytes)} checked)" if verified.checked_bytes else ""
    lines = [f"{stage.folder}: {said}{checked}"]
    lines += [f"    {damage.path}: {damage.fault}" for damage in verified.damaged]
    if strays := verified.strays:
        more = f" and {len(strays) - STRAYS_NAMED} more" if len(strays) > STRAYS_NAMED else ""
        lines.append(f"    not in its manifest: {', '.join(strays[:STRAYS_NAMED])}{more}")
    return lines + [f"    {problem}" for problem in stage.extent.problems]


def verified_json(data_root: Path, verified: Verified) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "data_root": str(data_root),
        **_stage_json(verified.stage),
        "result": verified.said,
        "checked_bytes": verified.checked_bytes,
        "damaged": {damage.path: damage.fault for damage in verified.damaged},
        "strays": verified.strays,
    }


def damage_advice(damaged: int, is_discarded: bool) -> str:
    """What to do about damage."""
    files = f"{damaged} file{' is' if damaged == 1 else 's are'} damaged"
    again = "run the recipe again: only that shard or stage is made anew."
    if is_discarded:
        return f"{files} and out of the way now; {again}"
    return f"{files}. `hero-run verify --discard` with the same arguments deletes what is there of them; then {again}"


def clean_text(inventory: Inventory, need: Needs, gone: list[Removal], with_states: bool) -> str:
    """What goes, what stays and why."""
    removed = {removal.path for removal in gone if removal.action == "delete"}
    lines = [str(inventory.data_root), "goes:" if gone else "goes: nothing"]
    lines += [_removal_line(inventory, removal) for removal in gone]
    staying = [stage for stage in inventory.stages if stage.folder not in removed]
    lines += ["stays:"] if staying else []
    for stage in staying:
        why = _why(need, stage)
        if with_states and stage.kind == "states" and need.waiting[stage.folder]:
            why += f"; not used up: {need.waiting[stage.folder]}"
        lines.append(f"  {readable_bytes(stage.extent.size_bytes):>8}  {stage.name}: {why}")
    lines += [f"unsure what recipe {name} needs: {why}" for name, why in need.unknown.items()]
    lines += [f"problem: {problem}" for problem in inventory.problems]
    total = readable_bytes(sum(removal.size_bytes for removal in gone))
    return "\n".join([*lines, f"{total} can go; {readable_bytes(free_bytes(inventory.data_root))} are free."])


def _removal_line(inventory: Inventory, removal: Removal) -> str:
    name = removal.path.relative_to(inventory.data_root)
    return f"  {readable_bytes(removal.size_bytes):>8}  {name}: {removal.why}"


def _why(need: Needs, stage: StageFolder) -> str:
    if who := need.who.get(stage.folder):
        return f"needed by {who[0]}" + (f" and {len(who) - 1} more" if len(who) > 1 else "")
    return "not a stage's folder, or it cannot be read: it is left alone"


def clean_json(
    inventory: Inventory, need: Needs, gone: list[Removal], is_deleted: bool, freed_bytes: int
) -> dict[str, Any]:
    """The same as plain data."""
    removed = {removal.path for removal in gone if removal.action == "delete"}
    staying = [stage for stage in inventory.stages if stage.folder not in removed]
    return {
        "data_root": str(inventory.data_root),
        "goes": [_removal_json(removal) for removal in gone],
        "stays": [{**_stage_json(stage), "why": _why(need, stage)} for stage in staying],
        "deleted": is_deleted,
        "freed_bytes": freed_bytes,
        "problems": inventory.problems,
    }
