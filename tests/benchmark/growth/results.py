"""What was measured of growth, piece by piece, as it is kept on disk."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from tests.benchmark.growth.curve import Curve


class Piece(BaseModel):
    """The curves of one thing that grows, and on which machine they were measured."""

    machine: dict[str, Any]
    curves: list[Curve]


class Results(BaseModel):
    """Of one model, by what grows."""

    model: str
    pieces: dict[str, Piece] = Field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
