"""Facts about a site, kept as Prefect blocks: the data volume, the vLLM engine and hub access.

Nothing needs to be saved: a block that has no document named ``hero-run`` is taken with its defaults.
"""

from typing import TypeVar

import httpx
from prefect.blocks.core import Block
from pydantic import ValidationError

from blocks.data_volume import DataVolume
from blocks.hub_access import HubAccess
from blocks.vllm_engine import VllmEngine
from tasks.errors import BadInput, TransientError

DOCUMENT_NAME = "hero-run"

B = TypeVar("B", bound=Block)


def saved_or_default(kind: type[B]) -> B:
    """The block document of this kind that the user saved as ``hero-run``, or the kind's defaults.

    Raises:
        BadInput: A value in the document does not fit its field.
        TransientError: The Prefect API is away, and with it the answer to whether there is a document.
    """
    try:
        return kind.load(DOCUMENT_NAME)  # type: ignore[return-value]
    except ValueError:  # Prefect's word for "no such document"
        return kind()
    except RuntimeError as error:  # and for one that does not fit
        raise _does_not_fit(kind, error) from None
    except httpx.TransportError as error:
        raise TransientError(
            f"the Prefect API is needed for the block {kind.__name__} named {DOCUMENT_NAME!r}, but it does not answer: "
            f"{error}. Start it again."
        ) from error


def _does_not_fit(kind: type[Block], error: RuntimeError) -> BadInput:
    # Without the values: one of them may be a secret.
    why = "; ".join(
        f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        for wrong in (error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else [])
    )
    return BadInput(
        f"the block {kind.get_block_type_name()!r} named {DOCUMENT_NAME!r} holds a value that does not fit: "
        f"{why or error}. Correct it in the UI, under Blocks."
    )


__all__ = ["DOCUMENT_NAME", "DataVolume", "HubAccess", "VllmEngine", "saved_or_default"]
