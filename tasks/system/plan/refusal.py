"""Why a run is not started, and what would fit."""

from tasks.recipe import Recipe
from tasks.system.plan.rows import need_rows
from tasks.system.plan.units import decimal_bytes
from tasks.system.plan.volumes import VolumeNeeds
from tasks.system.plan.whole import Plan


def refusal(plan: Plan, recipe: Recipe) -> str:
    """The message for a plan that does not fit: need, free, path, and what would fit; empty for one that does."""
    if plan.too_large_file:
        return (
            f"this run writes {plan.too_large_file} (RLIMIT_FSIZE). Raise the limit (ulimit -f unlimited), or lower "
            "extraction.shard_bytes if it is the shard."
        )
    full = next((group for group in plan.volumes if not group.fits), None)
    if full is None:
        return ""
    volume = full.volume
    lines = "\n".join(f"  {row['stage']:<17}{row['writes']:>9}  {row['basis']}" for row in need_rows(full))
    return (
        f"this run needs {decimal_bytes(full.need_bytes)} and keeps {decimal_bytes(volume.reserve_bytes)} in "
        f"reserve, but {volume.path} has {decimal_bytes(volume.free_bytes)} free:\n{lines}\n"
        f"Free some space or choose another data root (--data-root DIR); {_what_fits(plan, recipe, full)}."
    )


def _what_fits(plan: Plan, recipe: Recipe, full: VolumeNeeds) -> str:
    if not any(need.stage == "extraction" for need in full.needs):
        return "fewer samples or another layout would not change that: the states are on another filesystem"
    whole = [layout for layout in plan.layouts if layout.fits_whole and layout.layout != plan.choice.layout]
    if whole:
        best = whole[0]
        size = decimal_bytes(best.store_bytes)
        return f"layout {best.layout} would fit whole, {size} (--set extraction.layout={best.layout})"
    ways = [f"{layout.layout} in {layout.windows} windows" for layout in plan.layouts if layout.windows > 1]
    held_out = recipe.prompts.validation_samples
    counts = {layout.layout: layout.largest_samples - held_out for layout in plan.layouts}
    samples = [
        f"{count:,} training samples as {name} (--set prompts.training_samples={count} --set extraction.layout={name})"
        for name, count in counts.items()
        if count > 0
    ]
    if not ways and not samples:
        return "no number of samples fits"
    return "what would fit: " + "; ".join([*ways, *samples])
