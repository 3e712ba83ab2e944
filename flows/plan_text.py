"""The plan in words and columns; one line for each number of samples and layout, never wrapped."""

from flows.plan_report import PlanReport, describe_choice
from tasks.system.plan.engine_arguments import engine_facts
from tasks.system.plan.hours import StageHours, costs_dollars
from tasks.system.plan.memory import KvRoom, Memory
from tasks.system.plan.nights import InNights, Nights
from tasks.system.plan.units import decimal_bytes, decimal_count, dollars, readable_hours
from tasks.system.plan.whole import Plan

Row = dict[str, str]


def report_text(report: PlanReport) -> str:
    """Everything, for a terminal."""
    parts = [
        "\n".join(_head(report)),
        columns([row for plan in report.plans for row in _layout_rows(plan)]),
        "\n".join(f"{plan.tokens.samples:,} samples: {_verdict(plan)}" for plan in report.plans),
        columns([_hours_row(plan, report.recipe.hardware.prices_per_hour_dollars) for plan in report.plans]),
        "\n".join(_nights_lines(report)),
        "\n".join(_rates(report)),
        "\n".join(_memory_lines(report.memory, report)),
        "\n".join(_longer_lines(report)),
        "\n".join(_question_lines(report)),
        "\n".join(f"warning: {warning}" for warning in report.warnings),
    ]
    return "\n\n".join(part for part in parts if part)


def columns(rows: list[Row]) -> str:
    """Rows under their names, numbers to the right."""
    if not rows:
        return ""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    lines = [{name: name for name in rows[0]}, *rows]
    return "\n".join("  ".join(line[name].rjust(width) for name, width in widths.items()).rstrip() for line in lines)


def _head(report: PlanReport) -> list[str]:
    facts, source = report.ground.facts, report.recipe.target.source
    files = f" in {facts.shards} file{'s' * (facts.shards > 1)}" if facts.shards else ""
    return [
        f"{report.recipe.name}: {report.recipe.description}",
        f"machine: {report.recipe.hardware.description}",
        f"target: {source.name}, {decimal_bytes(facts.weights_bytes)}{files}, {facts.layers} layers of width "
        f"{facts.hidden_size}, from {report.ground.facts_basis}",
        f"disk: {_disk(report)}",
        f"lengths: {report.lengths.basis}",
    ]


def _disk(report: PlanReport) -> str:
    site = report.site
    where = str(site.data_root) if site.is_here else f"{site.data_root} is not on this machine"
    volume = report.own.states_volume
    if volume is None:
        return f"{where}; nothing is known of its free space: give it with --free, such as --free 2.8TB"
    free = f"{decimal_bytes(volume.free_bytes)} free ({volume.basis})"
    kept = f"{decimal_bytes(volume.reserve_bytes)} of it stay in reserve"
    is_assumed = not site.is_here and report.ground.there.target_is_ready
    there = ", the target's weights taken to be there" if is_assumed else ""
    return f"{where}; {free}, {kept}{there}"


def _layout_rows(plan: Plan) -> list[Row]:
    return [
        {
            "samples": f"{plan.tokens.samples:,}",
            "tokens": decimal_count(plan.tokens.total),
            "layout": layout.layout,
            "bytes/token": f"{layout.bytes_per_token:,}",
            "states": decimal_bytes(layout.store_bytes),
            "other stages": decimal_bytes(plan.need_bytes - _states_bytes(plan)),
            "windows": str(layout.windows or "never fits") if plan.volumes else "-",
            "at once": decimal_bytes(layout.peak_bytes) if layout.windows else "-",
            "taken": "<" if layout.layout == plan.choice.layout else "",
        }
        for layout in plan.layouts
    ]


def _states_bytes(plan: Plan) -> int:
    return sum(need.need_bytes for need in plan.needs if need.stage == "extraction")


def _verdict(plan: Plan) -> str:
    taken = describe_choice(plan.choice.layout, plan.choice.windows)
    return f"{taken}: {plan.choice.reason}" + ("" if plan.fits or not plan.volumes else ". As it is, it is refused")


def _hours_row(plan: Plan, prices: list[float]) -> Row:
    def of(stage: str, loads: bool) -> str:
        seconds = [line.seconds for line in plan.hours if line.stage == stage and line.is_load == loads]
        return readable_hours(sum(seconds)) if seconds else "-"

    row = {
        "samples": f"{plan.tokens.samples:,}",
        "server load": of("server-load", True),
        "inference": of("inference", False),
        "second load": of("extraction", True),
        "extraction": of("extraction", False),
        "training": of("training", False),
        "evaluation loads": of("evaluation", True),
        "evaluation": of("evaluation", False),
        "total": readable_hours(plan.total_seconds),
        "without loads and evaluation": readable_hours(_work_seconds(plan.hours)),
    }
    return row | ({"cost": dollars(costs_dollars(plan.hours, prices))} if prices else {})


def _work_seconds(hours: list[StageHours]) -> float:
    return sum(line.seconds for line in hours if not line.is_load and line.stage != "evaluation")


def _nights_lines(report: PlanReport) -> list[str]:
    nights = report.nights
    if nights is None:
        return []
    each = f"{readable_hours(nights.seconds)}, {nights.begin} to {nights.end}"
    lines = [f"nights of {each}; one that goes on within inference, extraction or evaluation loads the target again:"]
    for plan in report.plans:
        spread = report.in_nights(plan)
        says = "a night is too short for a load of the target and the work that needs it"
        lines.append(f"  {plan.tokens.samples:,} samples: {says if spread is None else _spread(spread, nights)}")
    return lines


def _spread(spread: InNights, nights: Nights) -> str:
    count = f"{spread.count} night{'s' * (spread.count != 1)} of {readable_hours(nights.seconds)}"
    broken_off = ", ".join(f"{off.stage} {100 * off.done_share:.0f} %" for off in spread.broken_off)
    last = f"done after {readable_hours(spread.last_seconds)}" + " of the last" * (spread.count > 1)
    return f"{count}, broken off at {broken_off}, {last}" if broken_off else f"{count}, {last}"


def _rates(report: PlanReport) -> list[str]:
    lines = [f"  {line.stage}, {line.part}: {line.basis}" for line in report.own.hours]
    return [f"what the hours of {report.own.tokens.samples:,} samples rest on (downloads are not counted):", *lines]


def _memory_lines(memory: Memory | None, report: PlanReport) -> list[str]:
    if memory is None:
        return ["memory: not planned, for want of the server's arguments or of the model's attention heads"]
    engine = engine_facts(report.recipe.server.engine)
    setting = f"tensor parallel {engine.tensor_parallel}, memory share {engine.memory_share:g}"
    if engine.cpu_kv_bytes:
        setting = f"{decimal_bytes(engine.cpu_kv_bytes)} given to it"
    lines = [
        f"memory: the KV cache takes {memory.bytes_per_token:,} bytes a token and card and has room for "
        f"{_kv(memory.kv)} ({setting}, window {memory.window_tokens:,})",
        f"  a request in flight holds about {memory.held_tokens:,} tokens: of {memory.in_flight} asked at once, "
        f"{memory.kv.running} run and {memory.queued} queue",
        *(f"  with {_kv_setting(other)}: {_kv(other)}, {other.running} run" for other in memory.alternatives),
    ]
    card = f"; a card has {decimal_bytes(memory.card_bytes)}" if memory.card_bytes else ""
    lines.append(f"  training takes about {decimal_bytes(memory.training_bytes)} on one device (an estimate){card}")
    return lines


def _kv_setting(room: KvRoom) -> str:
    return f"{room.kv_type} and context parallel {room.context_parallel}"


def _kv(room: KvRoom) -> str:
    if room.reported_tokens is None or room.deviation_share is None:
        return f"{decimal_count(room.formula_tokens)} tokens by formula"
    side = "above" if room.deviation_share >= 0 else "below"
    return (
        f"{decimal_count(room.reported_tokens)} tokens as users report, {decimal_count(room.formula_tokens)} by "
        f"formula ({abs(room.deviation_share):.0%} {side})"
    )


def _longer_lines(report: PlanReport) -> list[str]:
    if not report.longer:
        return []
    rows = []
    for times, plan in [(1.0, report.own), *report.longer]:
        row = {"answers": f"x {times:g}", "tokens": decimal_count(plan.tokens.total)}
        row |= {layout.layout: decimal_bytes(layout.store_bytes) for layout in plan.layouts}
        row |= {"taken": describe_choice(plan.choice.layout, plan.choice.windows)}
        rows.append(row | {"total": readable_hours(plan.total_seconds)})
    return [f"{report.own.tokens.samples:,} samples, were the answers longer:", columns(rows)]


def _question_lines(report: PlanReport) -> list[str]:
    lines, weights = [], report.ground.facts.weights_bytes
    if (training := report.training_on_all) is not None:
        least, most = training.one_seconds / training.slowest_seconds, training.one_seconds / training.fastest_seconds
        word = "assumed" if "training_speedup_all_gpus" in report.recipe.hardware.assumed else "stated"
        lines.append(
            f"training on 1 card or {training.gpus}: {readable_hours(training.one_seconds)} or "
            f"{readable_hours(training.fastest_seconds)} to {readable_hours(training.slowest_seconds)} ({least:g} to "
            f"{most:g} times faster, {word}); this run trains on one"
        )
    if (rented := report.rented) is not None:
        hardware, hours = rented.recipe.hardware, readable_hours(rented.plan.total_seconds)
        price = " to ".join(f"{price:g}" for price in hardware.prices_per_hour_dollars)
        lines.append(
            f"local or rented: {readable_hours(report.own.total_seconds)} here, {hours} on {hardware.description} "
            f"({rented.recipe.name}), {dollars(rented.costs_dollars)} at {price} dollars an hour; its throughputs are "
            "assumptions, and getting the weights there is not counted"
        )
    if (room := report.room_for_copy_bytes) is not None:
        missing = f"does not fit beside all that: {decimal_bytes(weights - room)} are missing"
        says = "fits beside all that" if room >= weights else missing
        lines.append(f"one more copy of the weights, {decimal_bytes(weights)}, {says}")
    return lines
