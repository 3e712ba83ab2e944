"""``python -m tests.benchmarks.demo_answers FOLDER [--set FIELD=VALUE]``: the demo's prompts, answered as it does.

In the flow environment. Beside what the demo trains on it answers 160 more held-out prompts, to measure on. What is
answered stays in the journal, so it goes on where it was. Prints nothing but progress; ``answers.json`` names what
was made.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any, NoReturn

from flows.recipes import named
from flows.settings import parse_changes
from tasks.recipe import Recipe, changed, to_json
from tasks.system.answering import answer_prompts, finish_set
from tasks.system.files import write_atomically
from tasks.system.journal import Journal
from tasks.system.prompts import load_prompts
from tasks.system.responses import RESPONSES_NAME
from tasks.system.restarts import Restarts
from tasks.system.run import Run
from tasks.system.target import ensure_target
from tasks.system.vllm_server import Endpoint, start_server, stop_server

ANSWERS_NAME, RECIPE_NAME = "answers.json", "recipe.json"
HELD_OUT_SAMPLES = 160


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What the benchmarks start from."""

    target_folder: Path
    responses_path: Path
    recipe: Recipe


def demo_recipe(changes: dict[str, Any]) -> Recipe:
    """The demo's recipe with more held-out prompts; the prompts that it trains on stay the same in number."""
    recipe = named("smollm2-cpu", changes)
    held_out = recipe.prompts.validation_samples + HELD_OUT_SAMPLES
    return changed(recipe, {"prompts": {"validation_samples": held_out}})


def answer(folder: Path, recipe: Recipe) -> Answers:
    """Answer what the journal in the folder lacks and write the set."""
    run = Run(recipe=recipe, id="0", name="benchmark", data_root=folder, engine_python=engine_python())
    target_folder = ensure_target(run, fetch=lambda *_: _never("the demo's target is not fetched"))
    prompts = load_prompts(recipe.prompts, Path(recipe.prompts.source))
    with Journal(folder / "journal.jsonl", 0) as journal:
        if len(journal.sample_ids) < len(prompts.training) + len(prompts.validation):
            endpoint = _server(run, target_folder)
            restarts = Restarts(most=0, reopen=lambda _: _never("the server died"), on_death=lambda _: None)
            try:
                tally = answer_prompts(
                    prompts, endpoint, recipe.inference, recipe.server, journal, restarts, lambda _: None
                )
            finally:
                stop_server(endpoint)
            finish_set(prompts, journal.path, folder, tally)
    return Answers(target_folder=target_folder, responses_path=folder / RESPONSES_NAME, recipe=recipe)


def _server(run: Run, target_folder: Path) -> Endpoint:
    server, log_path = run.recipe.server, run.log_folder / "server.log"
    return start_server(run.engine_python, target_folder, run.recipe.target, server, server.engine, log_path, print)


def engine_python() -> Path:
    """The engine environment's interpreter."""
    return Path(__file__).parents[2] / ".venv-engine" / "bin" / "python"


def _never(what: str) -> NoReturn:
    raise SystemExit(what)


def main() -> None:
    """What is there must be of the same recipe: the journal does not tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    arguments = parser.parse_args()
    folder, recipe = arguments.folder.absolute(), demo_recipe(parse_changes(arguments.changes))
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / RECIPE_NAME
    if kept.exists() and kept.read_text() != to_json(recipe):
        raise SystemExit(f"{folder} has answers of another recipe: delete it, or give the settings it was made with.")
    write_atomically(kept, to_json(recipe))
    write_atomically(folder / ANSWERS_NAME, to_json(answer(folder, recipe)))


if __name__ == "__main__":
    main()
