"""Where each stage's products belong: the chain of identities from the recipe to the verdict.

A stage's digest covers its own identity fields and the content of what it reads, so that regenerated
answers never meet old states, and changing a training parameter leaves everything before it alone.
"""

import dataclasses
from pathlib import Path

from tasks.recipe import identity_of
from tasks.system.files import sha256_of
from tasks.system.manifest import Stage, place
from tasks.system.model_folder import folder_identity
from tasks.system.run import Product, Run
from tasks.system.target import target_identity

# Raised by hand when the code changes what a stage makes.
ANSWERS_VERSION = 1
RESPONSES_VERSION = 1
DRAFTER_VERSION = 1
STATES_VERSION = 2
TRAINING_VERSION = 1
EVALUATION_VERSION = 1


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


def states_stage(run: Run, responses: Product, drafter: Product) -> Stage:
    """The captured hidden states."""
    return place(
        run.data_root,
        "states",
        "extraction",
        STATES_VERSION,
        responses=responses.content_sha256,
        layer_ids=drafter.facts["layer_ids"],
        extraction=identity_of(run.recipe.extraction),
        dtype=run.recipe.target.dtype,
    )


def training_stage(run: Run, states: Product, drafter: Product) -> Stage:
    """The trained drafter."""
    return place(
        run.data_root,
        "trained",
        "training",
        TRAINING_VERSION,
        states=states.content_sha256,
        drafter=drafter.content_sha256,
        training=identity_of(run.recipe.training),
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
