"""Where a site keeps what the runs write."""

from prefect.blocks.core import Block
from pydantic import Field


class DataVolume(Block):
    """The volume that weights, answers, hidden states and drafters are written to."""

    _block_type_name = "Hero run data volume"
    _block_type_slug = "hero-run-data-volume"
    _description = "The volume that weights, answers, hidden states and drafters are written to."

    root: str | None = Field(default=None, description="Folder on the volume; empty takes the recipe's data_root.")
    reserve_share: float | None = Field(
        default=None, ge=0, lt=1, description="Share of the volume that is left free; empty takes the recipe's."
    )
