"""Layout and windows that were chosen for a set of answers, kept so that no later start abandons what is begun."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.hidden_states.layout import LAYOUTS, Layout
from tasks.system.files import write_atomically
from tasks.system.manifest import digest_of
from tasks.system.run import Product, Run
from tasks.system.timings import PLANS_FOLDER


@dataclass(frozen=True, kw_only=True)
class ChosenLayout:
    """What was chosen, when by whom, and why."""

    layout: Layout
    windows: int
    reason: str
    run_id: str
    run_name: str


def record_path(run: Run, responses: Product, drafter: Product) -> Path:
    """Where the choice for these answers, layer ids and drafter is kept."""
    extraction = run.recipe.extraction
    asked = {} if extraction.layout == "auto" else {"layout": extraction.layout}
    key = digest_of(
        {
            **asked,
            **({"windows": extraction.windows} if extraction.windows else {}),
            "responses": responses.content_sha256,
            "layer_ids": drafter.facts["layer_ids"],
            "drafter": drafter.content_sha256,
            "top_k": extraction.top_k,
            "dtype": run.recipe.target.dtype,
        }
    )
    return run.data_root / PLANS_FOLDER / f"layout-{key}.json"


def read_choice(path: Path) -> ChosenLayout | None:
    """The choice that is kept there; None when there is none that can be read."""
    try:
        choice = ChosenLayout(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return choice if choice.layout in LAYOUTS else None


def write_choice(path: Path, choice: ChosenLayout) -> None:
    """Keep a choice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(choice), indent=1))
