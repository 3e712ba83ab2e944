"""The plan as JSON: the same content as the text, stable keys, units in the names."""

from typing import Any

from flows.plan_report import PlanReport
from tasks.system.plan.hours import costs_dollars
from tasks.system.plan.memory import KvRoom, Memory
from tasks.system.plan.volumes import Volume
from tasks.system.plan.whole import Plan


def report_json(report: PlanReport) -> dict[str, Any]:
    """Everything, as plain JSON data."""
    recipe, facts = report.recipe, report.ground.facts
    prices = recipe.hardware.prices_per_hour_dollars
    return {
        "recipe": recipe.name,
        "machine": recipe.hardware.description,
        "data_root": {"path": str(report.site.data_root), "is_on_this_machine": report.site.is_here},
        "target": {
            "name": recipe.target.source.name,
            "basis": report.ground.facts_basis,
            "weights_bytes": facts.weights_bytes,
            "weight_files": facts.shards,
            "hidden_size": facts.hidden_size,
            "layers": facts.layers,
            "is_taken_to_be_there": report.ground.there.target_is_ready,
        },
        "volume": _volume(report.own.states_volume),
        "lengths": {
            "prompt_tokens": report.lengths.prompt_tokens,
            "answer_tokens": report.lengths.answer_tokens,
            "is_measured": report.lengths.is_measured,
            "basis": report.lengths.basis,
        },
        "rates": {name: {"value": rate.value, "basis": rate.basis} for name, rate in report.ground.rates.items()},
        "prices_per_hour_dollars": prices,
        "nights": _nights(report),
        "plans": [_plan(plan, report) for plan in report.plans],
        "recipe_plan": _plan(report.own, report),
        "longer_answers": [{"times": times, **_plan(plan, report)} for times, plan in report.longer],
        "memory": _memory(report.memory),
        "training_on_all_gpus": _training(report),
        "rented": _rented(report),
        "room_for_one_more_copy_of_the_weights_bytes": report.room_for_copy_bytes,
        "warnings": report.warnings,
    }


def _volume(volume: Volume | None) -> dict[str, Any] | None:
    if volume is None:
        return None
    return {
        "path": str(volume.path),
        "free_bytes": volume.free_bytes,
        "reserve_bytes": volume.reserve_bytes,
        "basis": volume.basis,
    }


def _nights(report: PlanReport) -> dict[str, Any] | None:
    if (nights := report.nights) is None:
        return None
    return {"begin": nights.begin, "end": nights.end, "hours": round(nights.seconds / 3600, 3)}


def _in_nights(plan: Plan, report: PlanReport) -> dict[str, Any] | None:
    if (spread := report.in_nights(plan)) is None:
        return None
    broken_off = [{"stage": off.stage, "done_share": round(off.done_share, 3)} for off in spread.broken_off]
    return {"count": spread.count, "broken_off": broken_off, "last_hours": round(spread.last_seconds / 3600, 3)}


def _plan(plan: Plan, report: PlanReport) -> dict[str, Any]:
    tokens, prices = plan.tokens, report.recipe.hardware.prices_per_hour_dollars
    return {
        "samples": tokens.samples,
        "prompt_tokens": tokens.prompt_tokens,
        "answer_tokens": tokens.answer_tokens,
        "tokens": tokens.total,
        "tokens_basis": tokens.basis,
        "layouts": [
            {
                "layout": layout.layout,
                "bytes_per_token": layout.bytes_per_token,
                "states_bytes": layout.store_bytes,
                "windows": layout.windows,
                "peak_bytes": layout.peak_bytes,
                "largest_samples": layout.largest_samples,
            }
            for layout in plan.layouts
        ],
        "chosen_layout": plan.choice.layout,
        "chosen_windows": plan.choice.windows,
        "reason": plan.choice.reason,
        "needs": [
            {"stage": n.stage, "need_bytes": n.need_bytes, "path": str(n.path), "basis": n.basis} for n in plan.needs
        ],
        "need_bytes": plan.need_bytes,
        "fits": plan.fits if plan.volumes else None,
        "hours": [
            {"stage": h.stage, "part": h.part, "is_load": h.is_load, "hours": round(h.hours, 3), "basis": h.basis}
            for h in plan.hours
        ],
        "total_hours": round(plan.total_seconds / 3600, 3),
        "costs_dollars": [round(cost, 2) for cost in costs_dollars(plan.hours, prices)],
        "in_nights": _in_nights(plan, report),
    }


def _memory(memory: Memory | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    return {
        "kv_bytes_per_token_and_card": memory.bytes_per_token,
        "window_tokens": memory.window_tokens,
        "held_tokens_per_request": memory.held_tokens,
        "in_flight_requests": memory.in_flight,
        "running_requests": memory.kv.running,
        "queued_requests": memory.queued,
        "kv": _kv(memory.kv),
        "alternatives": [_kv(room) for room in memory.alternatives],
        "training_bytes": memory.training_bytes,
        "card_bytes": memory.card_bytes,
        "training_fits_one_card": memory.training_fits,
    }


def _kv(room: KvRoom) -> dict[str, Any]:
    return {
        "kv_type": room.kv_type,
        "context_parallel": room.context_parallel,
        "formula_tokens": room.formula_tokens,
        "reported_tokens": room.reported_tokens,
        "formula_deviation_share": None if room.deviation_share is None else round(room.deviation_share, 3),
        "running_requests": room.running,
    }


def _training(report: PlanReport) -> dict[str, Any] | None:
    training = report.training_on_all
    if training is None:
        return None
    return {
        "gpus": training.gpus,
        "one_gpu_hours": round(training.one_seconds / 3600, 3),
        "all_gpus_hours": [round(training.fastest_seconds / 3600, 3), round(training.slowest_seconds / 3600, 3)],
    }


def _rented(report: PlanReport) -> dict[str, Any] | None:
    rented = report.rented
    if rented is None:
        return None
    return {
        "recipe": rented.recipe.name,
        "machine": rented.recipe.hardware.description,
        "assumed": rented.recipe.hardware.assumed,
        "prices_per_hour_dollars": rented.recipe.hardware.prices_per_hour_dollars,
        "total_hours": round(rented.plan.total_seconds / 3600, 3),
        "costs_dollars": [round(cost, 2) for cost in rented.costs_dollars],
    }
