"""Beam search as every contender is asked for it, so that all must find the same."""

from dataclasses import dataclass
from typing import Any

from dragoman.v1 import generation_pb2 as pb
from server.search.options import BeamOptions, SearchOptions


@dataclass(frozen=True)
class Beam:
    """The options.

    CTranslate2's rule of when to end is early stopping with us. The end token counts for the length with us, and there
    where it is part of the result.

    Attributes:
        early_stopping: whether it ends as soon as `size` hypotheses are finished; else, which CTranslate2 can't, when
            no running one can become better than the best.
    """

    size: int = 4
    length_penalty: float = 1.0
    early_stopping: bool = True

    def search(self, max_new_tokens: int) -> SearchOptions:
        """For the engine."""
        beam = BeamOptions(self.size, length_penalty=self.length_penalty, early_stopping=self.early_stopping)
        return SearchOptions(max_new_tokens, beam=beam)

    def message(self, max_new_tokens: int) -> pb.GenerationOptions:
        """For the server."""
        return pb.GenerationOptions(
            max_new_tokens=max_new_tokens,
            beam_size=self.size,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )

    def arguments(self) -> dict[str, Any]:
        """For CTranslate2's translate_batch."""
        assert self.early_stopping, "CTranslate2 ends when as many hypotheses are finished as the beam is wide"
        return {"beam_size": self.size, "length_penalty": self.length_penalty, "return_end_token": True}
