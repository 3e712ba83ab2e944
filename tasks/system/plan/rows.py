"""The plan as tables for people: in the UI and in refusals."""

from tasks.system.plan.needs import STAGES
from tasks.system.plan.units import decimal_bytes, readable_hours
from tasks.system.plan.volumes import VolumeNeeds
from tasks.system.plan.whole import Plan

Row = dict[str, str]


def need_rows(group: VolumeNeeds) -> list[Row]:
    """What is going to be written on one filesystem."""
    rows = [{"stage": n.stage, "writes": decimal_bytes(n.need_bytes), "basis": n.basis} for n in group.needs]
    total = {"stage": "all", "writes": decimal_bytes(group.need_bytes), "basis": f"on {group.volume.path}"}
    free = {"stage": "free", "writes": decimal_bytes(group.volume.free_bytes), "basis": group.volume.basis}
    kept = {"stage": "reserve", "writes": decimal_bytes(group.volume.reserve_bytes), "basis": "is left free"}
    return [*rows, total, free, kept]


def stage_rows(plan: Plan) -> list[Row]:
    """Bytes and hours of the stages that have anything left to do, and the filesystems."""
    rows = []
    for stage in STAGES:
        needs = [need for need in plan.needs if need.stage == stage]
        lines = [line for line in plan.hours if line.stage == stage]
        if needs or lines:
            basis = [need.basis for need in needs]
            basis += [f"{line.part}: {readable_hours(line.seconds)} ({line.basis})" for line in lines]
            rows.append(_row(stage, sum(need.need_bytes for need in needs), sum(line.seconds for line in lines), basis))
    rows.append(_row("all", plan.need_bytes, plan.total_seconds, [plan.tokens.basis]))
    for group in plan.volumes:
        volume = group.volume
        kept = f"{decimal_bytes(volume.reserve_bytes)} of it stay in reserve"
        rows.append(_row("free", volume.free_bytes, 0, [f"on {volume.path}, {volume.basis}; {kept}"]))
    return rows


def layout_rows(plan: Plan) -> list[Row]:
    """Every layout against the room for it."""
    return [
        {
            "layout": layout.layout,
            "bytes a token": f"{layout.bytes_per_token:,}",
            "whole": decimal_bytes(layout.store_bytes),
            "windows": str(layout.windows or "does not fit"),
            "at once": decimal_bytes(layout.peak_bytes) if layout.windows else "-",
            "most samples whole": f"{layout.largest_samples:,}",
            "taken": "yes" if layout.layout == plan.choice.layout else "",
        }
        for layout in plan.layouts
    ]


def _row(stage: str, writes_bytes: int, seconds: float, basis: list[str]) -> Row:
    writes = decimal_bytes(writes_bytes) if writes_bytes else "-"
    return {
        "stage": stage,
        "bytes": writes,
        "hours": readable_hours(seconds) if seconds else "-",
        "basis": "; ".join(basis),
    }
