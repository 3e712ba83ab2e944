"""Where each stage's products belong: the chain of identities from the recipe to the verdict.

A stage's digest covers its own identity fields and the content of what it reads, so that regenerated
answers never meet old states, and changing a training parameter leaves everything before it alone.
"""

import dataclasses
from pathlib import Path

from tasks.errors import PermanentError
from tasks.hidden_states.layout import Layout
from tasks.hidden_states.windows import WHOLE, Window
from tasks.recipe import identity_of
from tasks.system.files import sha256_of
from tasks.system.manifest import Stage, place
from tasks.system.model_folder import folder_identity
from tasks.system.plan.choice_record import read_choice, record_path
from tasks.system.run import Product, Run
from tasks.system.target import target_identity

# Raised by hand when the code changes what a stage makes.
ANSWERS_VERSION = 1
RESPONSES_VERSION = 1
DRAFTER_VERSION = 1
STATES_VERSION = 3
TRAINING_VERSION = 1
EVALUATION_VERSION = 1

TOPK = "fp8+topk"
"""The layout whose content depends on the draft vocabulary, and on how many logits are kept."""


class NotChosenYet(PermanentError):
    """The layout of states that do not exist yet."""


def prompts_path(run: Run) -> Path:
    """The prompt file."""
    return Path(run.recipe.prompts.source).expanduser().absolute()


def answers_stage(run: Run) -> Stage:
    """The pool of answers: one journal for a model and its sampling; sets of any size are views of it."""
    return place(
        run.data_root,
        "answers",
        "answers",
        ANSWERS_VERSION,
        target=target_identity(run.recipe.target),
        inference=identity_of(run.recipe.inference),
    )


def answers_journal(run: Run) -> Path:
    """The file that inference resumes from."""
    return answers_stage(run).folder / "journal.jsonl"


def responses_stage(run: Run) -> Stage:
    """The finished set of answers."""
    answers = answers_stage(run)
    stage = place(
        run.data_root,
        "responses",
        "inference",
        RESPONSES_VERSION,
        answers=answers.digest,
        prompts=identity_of(run.recipe.prompts),
        prompts_sha256=sha256_of(prompts_path(run)),
    )
    return dataclasses.replace(stage, resumes_from=(answers.folder,))


def drafter_stage(run: Run) -> Stage:
    """The drafter that training starts from."""
    spec = run.recipe.drafter
    identity = identity_of(spec)
    if spec.source is not None and spec.source.kind == "folder":
        identity["source"] = folder_identity(Path(spec.source.name).expanduser())
    if spec.source is None:  # made from scratch, so the target shapes it
        identity["target"] = target_identity(run.recipe.target)
    return place(run.data_root, "drafters", "drafter-download", DRAFTER_VERSION, drafter=identity)


def resolved_layout(run: Run, responses: Product, drafter: Product) -> Layout:
    """The layout that the states of these answers have: the recipe's, or the one that was chosen for them.

    Raises:
        NotChosenYet: The recipe leaves it to the planner, which has not chosen: there are no such states.
    """
    asked = run.recipe.extraction.layout
    if asked != "auto":
        return asked
    path = record_path(run, responses, drafter)
    if (choice := read_choice(path)) is None:
        raise NotChosenYet(f"no layout is chosen for the states of these answers yet: {path} is not there.")
    return choice.layout


def resolved_windows(run: Run, responses: Product, drafter: Product) -> int:
    """In how many windows these answers are captured and trained on: 1 unless asked for or chosen otherwise."""
    asked = run.recipe.extraction.windows
    choice = None if asked else read_choice(record_path(run, responses, drafter))
    return choice.windows if choice is not None else asked or 1


def states_stage(run: Run, responses: Product, drafter: Product, window: Window = WHOLE) -> Stage:
    """The captured hidden states of a window.

    Raises:
        NotChosenYet: As in ``resolved_layout``.
    """
    return states_stage_in(run, responses, drafter, resolved_layout(run, responses, drafter), window)


def states_stage_in(run: Run, responses: Product, drafter: Product, layout: str, window: Window = WHOLE) -> Stage:
    """The captured hidden states of a window in this layout."""
    extraction = {**identity_of(run.recipe.extraction), "layout": layout}
    if layout != TOPK:
        del extraction["top_k"]
    del extraction["windows"]
    if not window.is_whole:
        extraction["window"] = dataclasses.asdict(window)
    return place(
        run.data_root,
        "states",
        "extraction",
        STATES_VERSION,
        responses=responses.content_sha256,
        layer_ids=drafter.facts["layer_ids"],
        extraction=extraction,
        dtype=run.recipe.target.dtype,
        **_draft_vocab_identity(run, drafter, layout),
    )


def _draft_vocab_identity(run: Run, drafter: Product, layout: str) -> dict[str, object]:
    """What decides over which tokens logits are stored, for the layout that stores any."""
    if layout != TOPK:
        return {}
    if run.recipe.drafter.source is None:  # then the answers decide, whatever the initial weights
        return {"draft_vocab_tokens": run.recipe.drafter.draft_vocab_tokens}
    return {"drafter": drafter.content_sha256}


def training_stage(run: Run, states: Product, drafter: Product, previous: Product | None = None) -> Stage:
    """The trained drafter, or what the next window goes on from; ``previous`` is the training of the window before."""
    return place(
        run.data_root,
        "trained",
        "training",
        TRAINING_VERSION,
        states=states.content_sha256,
        drafter=drafter.content_sha256,
        training=identity_of(run.recipe.training),
        **({} if previous is None else {"previous": previous.content_sha256}),
    )


def evaluation_stage(run: Run, trained: Product) -> Stage:
    """The verdict and its report."""
    return place(
        run.data_root,
        "evaluations",
        "evaluation",
        EVALUATION_VERSION,
        trained=trained.content_sha256,
        target=target_identity(run.recipe.target),
        prompts=identity_of(run.recipe.prompts),
        prompts_sha256=sha256_of(prompts_path(run)),
        evaluation=identity_of(run.recipe.evaluation),
    )
