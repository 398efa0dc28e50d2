"""The three graphs of a bundle, as thin modules around the trained ones."""

from export.graphs.decoder import DecoderStep
from export.graphs.encoder import SourceEncoder
from export.graphs.folding import folded
from export.graphs.scorer import Scorer

__all__ = ["DecoderStep", "Scorer", "SourceEncoder", "folded"]
