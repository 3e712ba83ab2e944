"""How checkpoints are downloaded."""

from typing import ClassVar

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, SecretStr, model_validator

from blocks.empty_fields import without_empty_fields


class HubAccess(Block):
    """A Hugging Face hub, the token that may read it, and the cache of its client."""

    _block_type_name = "Hero run hub access"
    _block_type_slug = "hero-run-hub-access"
    _description = "A Hugging Face hub, the token that may read it, and the cache of its client."

    # An error must not repeat what was typed: it may be the token.
    model_config: ClassVar[ConfigDict] = ConfigDict(hide_input_in_errors=True)
    _emptied = model_validator(mode="before")(without_empty_fields)

    endpoint: str | None = Field(
        default=None, description="Another hub than the public one (https://host); empty takes HF_ENDPOINT."
    )
    token: SecretStr | None = Field(
        default=None, description="For private and gated repositories; empty takes HF_TOKEN, or the login of `hf auth`."
    )
    cache_folder: str | None = Field(
        default=None,
        description="Cache of the hub's client on this machine: what `hf download` left there is linked or copied, and "
        "not fetched again. Empty takes HF_HUB_CACHE.",
    )
    files_at_once: int = Field(default=8, ge=1, description="Transfers side by side.")
    tries: int = Field(default=6, ge=1, description="Tries in a row without progress, for each request.")
    silence_seconds: float = Field(
        default=30.0, gt=0, description="A connection without a byte for this long is cut and taken up again."
    )
