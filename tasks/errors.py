"""The error tree.

    HeroRunError
    ├── PermanentError          the same call would fail the same way: never retried
    │   ├── RecipeError         a field of the recipe, or an override of it
    │   ├── BadInput            a prompt file, a checkpoint, a folder that is not what it must be
    │   ├── NotEnoughDisk       need, free space and path are in the message
    │   ├── BadProduct          a stage's own product fails its check (NaN loss, teacher gate)
    │   ├── GaveUp              the same failure twice in a row, or all allowed tries used up
    │   └── EngineRejected      vLLM refused the model, the drafter or an argument
    ├── TransientError          worth another try
    │   ├── ServerGone          the vLLM server stopped answering
    │   ├── ChildDied           a child process ended without saying why
    │   └── TransferFailed      a download broke off
    └── Stopped                 the run is being cancelled or wound down: not a fault
        └── DeadlineReached     by its deadline: where its stage stands

Every message says what was needed, what was found, where, and what to do. Errors cross task and
process edges, so they carry one string and nothing else; secrets are blotted out of it.
"""

from tasks.redaction import redacted


class HeroRunError(Exception):
    """Any fault that the hero run names."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redacted(message))


class PermanentError(HeroRunError):
    """The same call would fail the same way, so it is never retried."""


class RecipeError(PermanentError):
    """A recipe, a field of it, or an override of it is wrong."""


class BadInput(PermanentError):
    """A file or folder that the user named is not what it must be."""


class NotEnoughDisk(PermanentError):
    """A filesystem has less free space than a stage needs."""


class BadProduct(PermanentError):
    """A stage made something that fails its own check."""


class GaveUp(PermanentError):
    """The same failure came twice in a row, or the tries that are allowed are used up."""


class EngineRejected(PermanentError):
    """The engine refused the model, the drafter or an argument."""


class TransientError(HeroRunError):
    """Another try may succeed."""


class ServerGone(TransientError):
    """The vLLM server stopped answering."""


class ChildDied(TransientError):
    """A child process ended without saying why."""


class TransferFailed(TransientError):
    """A download broke off or did not match its checksum."""


class Stopped(HeroRunError):
    """The run is being cancelled or wound down."""


class DeadlineReached(Stopped):
    """The run's deadline is here; the message says which stage it cut short, and how far that had come."""
