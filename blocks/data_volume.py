"""Where a site keeps what the runs write."""

from typing import Any, ClassVar

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, model_validator

from blocks.empty_fields import without_empty_fields
from tasks.recipe import Recipe, changed


class DataVolume(Block):
    """The volume that weights, answers, hidden states and drafters are written to."""

    _block_type_name = "Hero run data volume"
    _block_type_slug = "hero-run-data-volume"
    _description = "The volume that weights, answers, hidden states and drafters are written to."

    model_config: ClassVar[ConfigDict] = ConfigDict(hide_input_in_errors=True)
    _emptied = model_validator(mode="before")(without_empty_fields)

    root: str | None = Field(default=None, description="Folder on the volume; empty takes the recipe's data_root.")
    reserve_share: float | None = Field(
        default=None, ge=0, lt=1, description="Share of the volume that is left free; empty takes the recipe's."
    )

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with what this site changes in it."""
        changes: dict[str, Any] = {"data_root": self.root, "reserve_share": self.reserve_share}
        return changed(recipe, {name: value for name, value in changes.items() if value is not None})
