"""Facts about a site, kept as Prefect blocks: the data volume, the vLLM engine and hub access.

Nothing needs to be saved: a block that has no document named ``hero-run`` is taken with its defaults.
"""

from typing import TypeVar

from prefect.blocks.core import Block

from blocks.data_volume import DataVolume
from blocks.hub_access import HubAccess
from blocks.vllm_engine import VllmEngine

DOCUMENT_NAME = "hero-run"

B = TypeVar("B", bound=Block)


def saved_or_default(kind: type[B]) -> B:
    """The block document of this kind that the user saved as ``hero-run``, or the kind's defaults."""
    try:
        return kind.load(DOCUMENT_NAME)  # type: ignore[return-value]
    except ValueError:  # Prefect's word for "no such document"
        return kind()


__all__ = ["DOCUMENT_NAME", "DataVolume", "HubAccess", "VllmEngine", "saved_or_default"]
