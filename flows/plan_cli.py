"""``hero-run plan``: what fits, how long, what it costs, before an hour is spent. Asks no network and no API."""

import argparse
import json
import re
from typing import Any

from flows import plan_json, plan_text
from flows.deadline import TIME_OF_DAY
from flows.plan_report import PlanReport, find_site, report_on
from flows.recipes import named
from flows.settings import add_changes, parse_changes
from tasks.recipe import Recipe, changed
from tasks.system.plan.nights import Nights, nights_between
from tasks.system.plan.tokens import recipe_samples

COMPARED_SHARES = (0.4, 1, 2)
"""Of the recipe's own number of samples, when none is asked for."""

_UNITS = {"": 1, "b": 1} | {
    letter + ending: base**power
    for power, letter in enumerate("kmgtp", 1)
    for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_TEXT = (
    "Tell for each number of samples what it writes, which layout of the hidden states fits and why, how long each "
    "stage takes and what that costs; what the KV cache and training take; and what changes with a rented machine, "
    "more cards or longer answers. Starts nothing, writes nothing, needs no GPU and no network. Exits 0 when it "
    "could plan, whether or not the run fits."
)


def add_command(commands: Any) -> None:
    """Register the command with the subparsers of ``hero-run``."""
    parser = commands.add_parser("plan", help="what fits, how long it takes and what it costs", description=_TEXT)
    parser.add_argument("recipe", help="a name from `hero-run recipes`")
    text = "numbers of answered prompts, such as 10000,25000,50000, the held-out ones included"
    parser.add_argument("--samples", type=_counts, default=[], metavar="N,N", help=text)
    text = "free space to plan for, such as 2.8TB (decimal), instead of what is free now"
    parser.add_argument("--free", type=_size, metavar="SIZE", help=text)
    parser.add_argument("--data-root", metavar="DIR", help="folder that the run would write under")
    text = "price of the machine in dollars an hour"
    parser.add_argument("--price-per-hour", type=_price, metavar="D", help=text)
    text = "times between which there may be work, such as 20:00-07:30: tells how many nights it takes"
    parser.add_argument("--nights", type=_nights, metavar="FROM-TO", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_changes(parser)
    parser.set_defaults(action=_plan)


def _plan(parsed: argparse.Namespace) -> int:
    report = make_report(parsed)
    text = json.dumps(plan_json.report_json(report), indent=1) if parsed.json else plan_text.report_text(report)
    print(text)
    return 0


def make_report(parsed: argparse.Namespace) -> PlanReport:
    """What was asked for, planned."""
    recipe = _asked(parsed)
    own = recipe_samples(recipe)
    counts = parsed.samples or [round(own * share) for share in COMPARED_SHARES]
    site = find_site(recipe, parsed.data_root, parsed.free)
    return report_on(recipe, site, sorted({own, *counts}), parsed.nights)


def _asked(parsed: argparse.Namespace) -> Recipe:
    recipe = named(parsed.recipe, parse_changes(parsed.changes))
    if parsed.data_root:
        recipe = changed(recipe, {"data_root": parsed.data_root})
    if parsed.price_per_hour is not None:
        recipe = changed(recipe, {"hardware": {"prices_per_hour_dollars": [parsed.price_per_hour]}})
    return recipe


def _counts(text: str) -> list[int]:
    counts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise argparse.ArgumentTypeError(f"numbers of samples were needed, such as 10000,25000; found {text!r}")
    return [int(count) for count in counts]


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise argparse.ArgumentTypeError(f"a size was needed, such as 2.8TB, 500GB or 1TiB; found {text!r}")
    return round(float(match[1]) * _UNITS[match[2].lower()])


def _nights(text: str) -> Nights:
    begin, dash, end = text.replace(" ", "").partition("-")
    if not dash or not all(re.match(TIME_OF_DAY, time) for time in (begin, end)):
        raise argparse.ArgumentTypeError(f"two times of day were needed, such as 20:00-07:30; found {text!r}")
    return nights_between(begin, end)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise argparse.ArgumentTypeError(f"dollars an hour were needed, such as 40 or 2.5; found {text!r}")
    return price
