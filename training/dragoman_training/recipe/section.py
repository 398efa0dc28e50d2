"""The base of all sections of a recipe."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the recipe: rejects unknown keys and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def flatten(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a nested document by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
