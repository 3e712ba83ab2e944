"""How checkpoints are downloaded."""

from prefect.blocks.core import Block
from pydantic import Field, SecretStr


class HubAccess(Block):
    """A Hugging Face hub, and the token that may read it."""

    _block_type_name = "Hero run hub access"
    _block_type_slug = "hero-run-hub-access"
    _description = "A Hugging Face hub, and the token that may read it."

    endpoint: str | None = Field(default=None, description="Another hub than the public one.")
    token: SecretStr | None = Field(default=None, description="For private and gated repositories.")
    files_at_once: int = Field(default=8, ge=1, description="Transfers side by side.")
    tries: int = Field(default=6, ge=1, description="Tries in a row without progress, for each request.")
    silence_seconds: float = Field(
        default=30.0, gt=0, description="A connection without a byte for this long is cut and taken up again."
    )
