"""``--set FIELD=VALUE`` on the command line."""

import argparse
import json
from typing import Any

from tasks.errors import RecipeError


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Register ``--set``, which may be given several times, as ``changes``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        dest="changes",
        help="change a recipe field, such as training.epochs=2; may be given several times",
    )


def parse_changes(settings: list[str]) -> dict[str, Any]:
    """``a.b=1`` settings as nested changes; a value is JSON, or else the text itself.

    Raises:
        RecipeError: A setting has no ``=``.
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise RecipeError(f"--set takes FIELD=VALUE, such as training.epochs=2; found {setting!r}.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        *parents, last = name.split(".")
        inner = changes
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return changes
