"""Fields that were emptied in the UI, which stores null for them."""

from collections.abc import Mapping
from typing import Any


def without_empty_fields(document: Any) -> Any:
    """A stored document without its nulls, so that a field's default holds; for ``model_validator(mode="before")``."""
    if not isinstance(document, Mapping):
        return document
    return {name: value for name, value in document.items() if value is not None}
