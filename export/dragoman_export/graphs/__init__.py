"""The three graphs of a bundle: PyTorch modules around the trained model, and their export to ONNX."""

from dragoman_export.graphs.decoder import DecoderStep
from dragoman_export.graphs.encoder import SourceEncoder
from dragoman_export.graphs.folding import fold_model
from dragoman_export.graphs.scorer import Scorer

__all__ = ["DecoderStep", "Scorer", "SourceEncoder", "fold_model"]
