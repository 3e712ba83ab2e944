"""The ``hero-run`` command: a thin line over the flow."""

import argparse
import json
import os
import sys
import typing
from pathlib import Path
from typing import Any

from flows import local_api, plan_cli, prefect_cli, store_cli
from flows.deadline import asked_deadline
from flows.no_secrets import refuse_key_arguments, refuse_secrets
from flows.recipes import RECIPES, Overrides, RefreshName, named
from flows.settings import add_changes, parse_changes
from tasks.errors import HeroRunError
from tasks.recipe import Recipe, from_json
from tasks.system.run import Product

EXIT_STOPPED = 130
"""The run was cancelled or told to stop: what shells say of Ctrl-C."""

API_STAYED_AWAY = (
    "the Prefect API stayed away for so long that the run was given up; what is finished stays on disk. "
    "Start the API, and then the run again"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.action(parsed)
    except HeroRunError as error:
        print(f"hero-run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hero-run: stopped; what is finished stays on disk and is used by the next start.", file=sys.stderr)
        return EXIT_STOPPED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hero-run",
        description="A fitting EAGLE-3 drafter for a very large model, overnight, on one machine.",
        epilog="Start with: hero-run run smollm2-cpu",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a recipe; finished stages are not repeated", description=_RUN_TEXT)
    run.add_argument("recipe", help="a name from `hero-run recipes`")
    add_changes(run)
    run.add_argument("--data-root", metavar="DIR", help="folder that everything is written under")
    run.add_argument(
        "--refresh",
        action="append",
        default=[],
        choices=typing.get_args(RefreshName),
        metavar="STAGE",
        help=f"make a stage anew although it is finished: {', '.join(typing.get_args(RefreshName))}",
    )
    _add_deadline(run)
    _add_ui_port(run)
    run.set_defaults(action=_run)
    recipes = commands.add_parser("recipes", help="list the recipes")
    recipes.set_defaults(action=_recipes)
    plan_cli.add_command(commands)
    store_cli.add_commands(commands)
    prefect_cli.add_commands(commands)
    ui = commands.add_parser("ui", help="serve Prefect's UI with the runs so far, until Ctrl-C")
    _add_ui_port(ui)
    ui.set_defaults(action=_ui)
    return parser


_RUN_TEXT = (
    "Run a recipe from where it stands on disk. Uses the Prefect API of PREFECT_API_URL; without one, a local "
    "server is started for the time of the run and stopped afterwards. Exits 0 when the run completes, whatever "
    "the verdict, or when its deadline comes; 1 when it fails; 130 when it is cancelled or stopped. Started again, it "
    "goes on where it was."
)


def _add_deadline(parser: argparse.ArgumentParser) -> None:
    deadline = parser.add_argument_group("deadline", "when the run ends whatever it is at")
    when = deadline.add_mutually_exclusive_group()
    when.add_argument("--stop-at", metavar="HH:MM", help="the next such time of day")
    when.add_argument("--stop-after", metavar="TIME", help="so long after the start, such as 11h30m or 45m")
    deadline.add_argument("--time-zone", metavar="ZONE", help="of --stop-at, such as Europe/Berlin; else the machine's")
    text = "stop (the default), or finish: end inference alone, and go on with the answers that are there"
    deadline.add_argument("--then", choices=["stop", "finish"], help=text)


def _add_ui_port(parser: argparse.ArgumentParser) -> None:
    default = local_api.DEFAULT_UI_PORT
    text = f"port of the local Prefect server (default {default}); ignored when PREFECT_API_URL is set"
    parser.add_argument("--ui-port", type=int, default=default, metavar="N", help=text)


def _run(parsed: argparse.Namespace) -> int:
    changes = parse_changes(parsed.changes)
    if parsed.data_root:
        changes["data_root"] = str(Path(parsed.data_root).expanduser().absolute())
    recipe = named(parsed.recipe, changes)  # a typing error is told here, before anything starts
    refuse_secrets(changes)
    refuse_key_arguments(recipe)
    asked = asked_deadline(parsed.stop_at, parsed.time_zone, parsed.stop_after, parsed.then)
    _set_prefect(recipe)
    if "PREFECT_API_URL" not in os.environ:
        print(f"Prefect UI while it runs: {local_api.ensure_api(parsed.ui_port)}", flush=True)
        os.environ.update(local_api.settings(parsed.ui_port))
    # Prefect reads its settings when it is imported, so not before they are set.
    from flows.run_states import require_api

    require_api()
    overrides = Overrides(**changes) if changes else None
    product = _product_or_exit(parsed.recipe, overrides, parsed.refresh, asked)
    if isinstance(product, str):  # it ended at its deadline
        print(f"\ndeadline: {product}")
        return 0
    # With it come plotting and the client of vLLM, which the other commands need not wait for.
    from tasks.system.report import Report, table_rows, text_table

    report = from_json(Report, json.dumps(product.facts))
    print(f"\n{text_table(table_rows(report))}\n\n{report.verdict.sentence(report.settings['confidence'])}")
    print(f"{report.speed_sentence}\nreport: {product.folder}\n\n{report.last_line()}")
    return 0


def _product_or_exit(*arguments: Any) -> Product | str:
    """Run the flow and say what went wrong on the way; a run that was ended from outside exits here.

    Returns:
        Its product, or how far it had come at its deadline.

    Raises:
        HeroRunError: What the run failed with.
        SystemExit: The run was stopped, or lost the API.
    """
    import httpx

    from flows.hero_run import hero_run
    from flows.site import last_faults
    from flows.state_watch import StoppedFromOutside

    api_is_away = False
    try:
        return hero_run(*arguments)
    except StoppedFromOutside as stop:
        message, code, api_is_away = str(stop), EXIT_STOPPED, not stop.told
    except httpx.TransportError as error:
        message, code, api_is_away = f"{API_STAYED_AWAY} ({os.environ['PREFECT_API_URL']}: {error})", 1, True
    finally:
        if (faults := last_faults()) is not None:
            print(f"\nfaults on the way: {faults}", flush=True)
    print(f"hero-run: {message}", file=sys.stderr, flush=True)
    if api_is_away:
        # Without Prefect's farewell, which waits for the API once more. What guards our children sees the end.
        os._exit(code)
    raise SystemExit(code)


def _set_prefect(recipe: Recipe) -> None:
    """Settings of Prefect's clients that a long run needs, where the user has set none."""
    # A call waits about half an hour for an API that is away, instead of ending the run.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "10")
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "60")
    results = Path(recipe.data_root).expanduser().absolute() / "results"
    os.environ.setdefault("PREFECT_RESULTS_LOCAL_STORAGE_PATH", str(results))


def _recipes(_parsed: argparse.Namespace) -> int:
    for name, recipe in RECIPES.items():
        print(f"{name:<14}{recipe().description}")
    return 0


def _ui(parsed: argparse.Namespace) -> int:
    if not local_api.answers(parsed.ui_port):
        command = local_api.command(parsed.ui_port)
        os.execve(command[0], command, {**os.environ, **local_api.settings(parsed.ui_port)})
    print(f"already served: http://{local_api.HOST}:{parsed.ui_port}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
