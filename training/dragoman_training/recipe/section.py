"""The base of all sections of a recipe."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the recipe: rejects unknown keys and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
