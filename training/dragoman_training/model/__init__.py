"""The Transformer, one component per module."""

from dragoman_training.model.config import ModelConfig
from dragoman_training.model.transformer import Transformer

__all__ = ["ModelConfig", "Transformer"]
